"""What an analysis found, in the lines of a log."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from analyzer.ledger_states import ledger_line
from contract.command_log import bounded
from contract.warnings import warning_message


def analysis_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """State, rates, counters per rank, ledgers and their differences, KV usage and warnings."""
    validation, actual = document["validation"], document["actual"]
    yield (
        f"status {document['status']}, validation {validation['status']}, actual {validation['actual_status']}"
    )
    yield (
        f"hit rates: target {_rate(document['requested_target_hit_rate'])}, theory "
        f"{_rate(document['theoretical_hit_rate'])}, actual {_rate(actual['global_hit_rate'])}"
        f"{_because(actual['reason'])}; actual against theory "
        f"{_points(document['theory_actual_signed_difference_pp'])}"
    )
    yield from bounded(
        (
            f"rank {rank}: {part['hits']} of {part['queries']} tokens hit ({_rate(part['hit_rate'])}); KV usage peak "
            f"{_rate(part['kv_cache_usage_peak'])}, average {_rate(part['kv_cache_usage_avg'])}"
            for rank, part in actual["by_dp"].items()
        ),
        "analysis.json has them all",
    )
    yield (
        f"KV usage during the load: peak {_rate(actual['global_kv_cache_usage_peak'])}, average "
        f"{_rate(actual['global_kv_cache_usage_avg'])}{_because(actual.get('kv_cache_usage_reason'))}"
    )
    yield ledger_line(validation["ledgers"])
    for name, state in validation["ledgers"].items():
        if state["status"] == "absent":
            yield f"ledger {name}: {state['reason']}"
    yield f"agreement: {orjson.dumps(document['agreement']).decode()}"
    for difference in document["ledgers"].get("differences", []):
        yield f"difference: {orjson.dumps(difference).decode()}"
    for warning in document["warnings"]:
        yield f"warning {warning['code']}: {warning_message(warning)}"


def _rate(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4%}"


def _points(value: float | None) -> str:
    return "not known" if value is None else f"{value:+.4f} pp"


def _because(reason: str | None) -> str:
    return f" ({reason})" if reason else ""
