"""KV-cache usage of a load is that of its own time, whatever its driver does before and after; else null, with why."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analyzer.analyze import analyze_measurement
from contract.measurement import PhaseRecord
from contract.streams import KV_SAMPLE_SCHEMA, TableStream, write_parquet
from tests.analyzer.conftest import Made, Make
from tests.analyzer.synthetic import edit_measurement

STAMP = "20260101_000000"
FIRST_SENT, LAST_FINISHED = 40.0, 42.0
"""Seconds after the formal phase began: AISBench imports, sends for two seconds, writes its tables."""
USAGE = {1: 0.0, 39: 0.0, 40: 0.2, 41: 0.4, 42: 0.6, 43: 0.9, 54: 0.9}
"""What each rank shows at each second; what is left in the cache after the load is no load."""


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzer.analyze.write_report", lambda *_, **__: None)


def analyzed(
    made: Made, usage: Callable[[int], float | None] | None, seconds: Any = USAGE, **fields: Any
) -> dict[str, Any]:
    count = len(made.rows)
    at = [FIRST_SENT + (LAST_FINISHED - FIRST_SENT) * number / count for number in range(count)]
    records = [
        item._replace(
            wall_start=1000.0 + begun, e2el_s=LAST_FINISHED - begun if number == count - 1 else 0.01
        )
        for number, (item, begun) in enumerate(zip(made.records(), at, strict=True))
    ]
    phase = PhaseRecord(
        name="formal", started_at="1970-01-01T00:16:40.000+00:00", finished_at="1970-01-01T00:17:40+00:00"
    )
    directory = made.write(records, stamp=STAMP, phases=[phase], **fields)
    if usage is not None:
        keep(directory.kv_samples_stream, directory.kv_samples, seconds, usage, made.ranks)
        edit_measurement(directory)
    found: dict[str, Any] = analyze_measurement(made.manifest, STAMP).document
    return found


def keep(stream: Path, parquet: Path, seconds: Any, usage: Callable[[int], float | None], ranks: int) -> None:
    rows = [
        {"elapsed_seconds": float(at), "dp_rank": rank, "kv_cache_usage": usage(at), "requests_running": 1,
         "requests_waiting": at}
        for at in seconds
        for rank in range(ranks)
    ]  # fmt: skip
    with TableStream(stream, KV_SAMPLE_SCHEMA) as table:
        table.append(pa.RecordBatch.from_pylist(rows, schema=KV_SAMPLE_SCHEMA))
    write_parquet(stream, parquet, KV_SAMPLE_SCHEMA)
    stream.unlink()


def test_from_the_first_request_sent_to_the_last_one_finished(make: Make) -> None:
    document = analyzed(make(), USAGE.__getitem__)
    polling, actual = document["runtime"]["kv_cache_polling"], document["actual"]
    assert polling["load_seconds"] == pytest.approx([FIRST_SENT, LAST_FINISHED])
    assert (polling["count"], len(polling["samples"])) == (7, 7), "all that was sampled is kept"
    summary = polling["summary"]
    assert (summary["count"], summary["requests_waiting_peak"], summary["reason"]) == (3, 42, None)
    for part in summary["by_dp"].values():
        assert part == {"peak": 0.6, "avg": pytest.approx(0.4), "sample_count": 3}
    assert summary["by_dp"].keys() == {"0", "1"}
    assert actual["global_kv_cache_usage_peak"] == 0.6
    assert actual["global_kv_cache_usage_avg"] == pytest.approx(0.4)
    assert actual["kv_cache_usage_reason"] is None
    assert [rank["kv_cache_usage_reason"] for rank in actual["by_dp"].values()] == [None, None]
    assert [rank["kv_cache_usage_avg"] for rank in actual["by_dp"].values()] == pytest.approx([0.4, 0.4])


CASES: dict[str, tuple[Callable[[int], float | None] | None, Any, float]] = {
    "none of 2 samples fell into the load of 2 s (service.poll_interval_seconds is 5)": (
        USAGE.__getitem__,
        (39, 43),
        5.0,
    ),
    "the load of 2 s was over before the first sample (service.poll_interval_seconds is 5)": (None, (), 5.0),
    "the engine's metrics page shows no KV-cache usage": (lambda _at: None, USAGE, 5.0),
    "service.poll_interval_seconds is 0, so nothing was sampled": (None, (), 0.0),
}


@pytest.mark.parametrize("reason", CASES)
def test_what_is_not_known_is_null_with_its_reason(make: Make, reason: str) -> None:
    made = make()
    usage, seconds, interval = CASES[reason]
    service = made.manifest.effective_config["service"] | {"poll_interval_seconds": interval}
    document = analyzed(made, usage, seconds, service=service)
    summary, actual = document["runtime"]["kv_cache_polling"]["summary"], document["actual"]
    assert (summary["global_peak"], summary["global_avg"], summary["by_dp"]) == (None, None, {})
    assert summary["reason"] == actual["kv_cache_usage_reason"] == reason
    assert [rank["kv_cache_usage_reason"] for rank in actual["by_dp"].values()] == [reason, reason]
    assert actual["global_kv_cache_usage_peak"] is None
