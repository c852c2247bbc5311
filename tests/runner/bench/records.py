"""Request records made by hand."""

from typing import Any

from contract.records import RequestRecord


def record(number: int, **changes: Any) -> RequestRecord:
    values: dict[str, Any] = {
        "position": number,
        "request_id": f"r{number}",
        "group": "g",
        "dp_rank": None,
        "lane_sequence": None,
        "attempt": 1,
        "started_ns": 1_000_000_000 * number,
        "wall_start": 1_700_000_000.0 + number,
        "ttft_s": 0.25,
        "e2el_s": 1.0,
        "itl_s": (0.25, 0.25, 0.25),
        "chunks": 4,
        "http_status": 200,
        "error_kind": None,
        "error_text": None,
        "prompt_tokens": 100,
        "completion_tokens": 4,
        "cached_tokens": 64,
        "finish_reason": "length",
    }
    return RequestRecord(**(values | changes))


def failed(number: int, kind: str = "http") -> RequestRecord:
    return record(
        number,
        ttft_s=None,
        e2el_s=None,
        itl_s=(),
        chunks=0,
        http_status=500,
        error_kind=kind,
        error_text='HTTP 500: oops, "really"',
        prompt_tokens=None,
        completion_tokens=None,
        cached_tokens=None,
        finish_reason=None,
    )
