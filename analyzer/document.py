"""Parts of an analysis that every kind of measurement has: ledgers, differences, agreement, warnings, the verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from analyzer.actual import (
    counter_actual,
    no_counters,
    sum_known,
    why_not_measurable,
)
from analyzer.causes import Circumstances, explain, version_caveat
from analyzer.failures import Failures, failures_by_kind, told
from analyzer.known_causes import KNOWN
from analyzer.ledger_states import incomplete_ledgers
from analyzer.ledgers import (
    LEDGERS,
    NAMES,
    Ledger,
    Page,
    ledger_differences,
)
from analyzer.request_table import RequestTable
from analyzer.scrapes import ScrapePair, metric_names, metrics_part
from contract.engine_version import parse_version
from contract.measurement import Measurement
from contract.run_directory import MeasurementDirectory
from contract.scenario import Validation

UNSETTLED = {"COUNTERS_NOT_SETTLED", "FOREIGN_TRAFFIC", "AFTER_SCRAPE_MISSING"}
"""Findings that say why the counters are not settled."""


def failed_or_repeated(
    document: dict[str, Any], requests: RequestTable, directory: MeasurementDirectory
) -> list[dict[str, Any]]:
    """Findings about requests that were not answered at their first attempt; notes the kinds of failures in `actual`."""
    failures = failures_by_kind(directory) if requests.failed or requests.retried else []
    document["actual"]["failures"] = [asdict(item) for item in failures]
    found = []
    if requests.failed:
        found.append({"code": "REQUESTS_FAILED", "message": failed_message(document)})
    if requests.retried:
        message = (
            f"{requests.retried} attempts were repeated after a failure ({told(failures)}): they may have found what the "
            f"attempt before had left in the cache; {_void(document)}"
        )
        found.append({"code": "ATTEMPTS_REPEATED", "message": message})
    return found


def run_findings(measurement: Measurement) -> list[dict[str, Any]]:
    """What the run found, as warnings. Counters that did not settle are one of them, whatever the run said of it."""
    found = [{"code": finding.code, "message": finding.message} for finding in measurement.findings]
    if measurement.settled is False and not UNSETTLED & {item["code"] for item in found}:
        message = "the counters had not come to rest when the last scrape was taken"
        found.append({"code": "COUNTERS_NOT_SETTLED", "message": message})
    if measurement.parts is None:
        message = "measurement.json does not say which files are its own; they were taken as they lie there"
        found.append({"code": "PARTS_UNPROVEN", "message": message})
    return found


def counters_part(
    scrapes: ScrapePair, kv_summary: Mapping[str, Any], requests: RequestTable | None
) -> dict[str, Any]:
    """`actual`, as far as the counters tell it."""
    after = scrapes.after_snapshot
    if scrapes.difference is None or after is None:
        return no_counters(scrapes.reason or "the scrapes are not there")
    usage = {rank.rank: rank.kv_cache_usage for rank in after.ranks}
    not_measurable = None if requests is None else why_not_measurable(scrapes.difference, requests)
    return counter_actual(scrapes.difference, usage, kv_summary, not_measurable)


def page_of(scrapes: ScrapePair, block_size: int, actual: Mapping[str, Any]) -> Page | str:
    """What ledgers are read from. Counters that moved in a way that gives no hit rate are no ledger either."""
    after = scrapes.after_snapshot
    if scrapes.difference is None or after is None:
        return scrapes.reason or "the scrapes are not there"
    counted = scrapes.difference.queries is not None and scrapes.difference.hits is not None
    return Page(scrapes.difference, after.metric_names, block_size, actual["reason"] if counted else None)


def circumstances(scrapes: ScrapePair, *, version: str | None, **known: Any) -> Circumstances:
    ranks = scrapes.difference.ranks if scrapes.difference else ()
    external = sum_known([rank.external_hits for rank in ranks])
    by_source = [rank.prompt_tokens_by_source for rank in ranks]
    if external is None and ranks and None not in by_source:
        external = sum((parts or {}).get("external_kv_transfer", 0) for parts in by_source)
    return Circumstances(
        version=parse_version(version),
        version_text=version,
        preemptions=sum_known([rank.preemptions for rank in ranks]),
        external_hits=external,
        speculative=scrapes.after_snapshot.speculative if scrapes.after_snapshot else None,
        **known,
    )


def emptied(measurement: Measurement) -> bool | None:
    """Whether the cache was proved empty before the run; None: that was not checked."""
    status = next((check.status for check in measurement.preflight if check.name == "reset"), None)
    return {"ok": True, "warning": False}.get(status or "")


def ledgers_document(ledgers: Mapping[str, Ledger], seen: Circumstances) -> dict[str, Any]:
    """`ledgers`: each by name, and every difference with the cause that all ledgers fit, if there is one.

    `agree` None: fewer than two known. `explanations`: the causes by name, and by what the others are ruled out.
    """
    found = ledger_differences(ledgers)
    explained = {quantity: explain(quantity, ledgers, seen, KNOWN) for quantity in ("queries", "hits")}
    known = [name for name in NAMES if ledgers[name].total.hits is not None]
    return {
        **{name: ledgers[name].document() for name in NAMES},
        "agree": not found if len(known) > 1 else None,
        "differences": [
            {
                "between": [difference.first, difference.second],
                "quantity": difference.quantity,
                "tokens": difference.tokens,
                "by_dp": {str(rank): tokens for rank, tokens in difference.by_dp.items()},
                "cause": explained[difference.quantity].cause_of(difference),
                "caveat": version_caveat(difference, seen),
            }
            for difference in found
        ],
        "explanations": {quantity: explanation.document() for quantity, explanation in explained.items()},
    }


def runtime_document(
    measurement: Measurement, scrapes: ScrapePair, polling: dict[str, Any]
) -> dict[str, Any]:
    """`runtime`: phases, checks, scrapes, samples, the engine and the load. `aisbench_exit_code`: null where the native
    driver sent."""
    before = scrapes.before_snapshot
    return {
        "phases": [phase.name for phase in measurement.phases],
        "phase_times": [phase.model_dump(mode="json") for phase in measurement.phases],
        "precheck": {
            "ok": all(check.status != "failed" for check in measurement.preflight),
            "ranks": [rank.rank for rank in before.ranks] if before else None,
            "metric_names": metric_names(before) if before else None,
            "checks": [check.model_dump(mode="json") for check in measurement.preflight],
        },
        "warmup": [warmup.model_dump(mode="json") for warmup in measurement.warmup],
        "metrics_baseline": metrics_part(scrapes.before),
        "metrics_after": metrics_part(scrapes.after),
        "aisbench_exit_code": None if measurement.aisbench is None else measurement.aisbench.exit_code,
        "kv_cache_polling": polling,
        "engine": None if measurement.engine is None else measurement.engine.model_dump(mode="json"),
        "load": None if measurement.load is None else measurement.load.model_dump(mode="json"),
        "measurement": measurement.stamp,
        "started_at": measurement.started_at,
        "finished_at": measurement.finished_at,
        "settled": measurement.settled,
    }


def differences(theory: float, actual: float | None) -> dict[str, float | None]:
    """Actual against theory, in percentage points; None when nothing was measured."""
    signed = None if actual is None else (actual - theory) * 100
    size = None if signed is None else abs(signed)
    return {
        "theory_actual_difference_pp": size,
        "theory_actual_signed_difference_pp": signed,
        "theory_actual_absolute_difference_pp": size,
    }


def agreement(
    theory_tokens: int | None, planned_tokens: int | None, ledgers: Mapping[str, Ledger]
) -> dict[str, Any]:
    """Theory and all ledgers in tokens, and whether they are equal. None: that ledger is not known."""
    totals = {name: ledgers[name].total for name in NAMES}
    hits = {"theory": theory_tokens, **{name: totals[name].hits for name in NAMES}}
    queries = {
        "planned": planned_tokens,
        **{kind.queries_as: totals[kind.name].queries for kind in LEDGERS if kind.queries_as is not None},
    }
    return {
        "hit_tokens": hits,
        "query_tokens": queries,
        "hits_equal": equal(hits),
        "queries_equal": equal(queries),
    }


def equal(ledgers: Mapping[str, int | None]) -> bool | None:
    """Whether all known ledgers agree; None when fewer than two are known."""
    known = [value for value in ledgers.values() if value is not None]
    return len(set(known)) == 1 if len(known) > 1 else None


def warnings(document: dict[str, Any], scrapes: ScrapePair, validation: Validation) -> list[dict[str, Any]]:
    """What the numbers themselves give reason to warn of."""
    found: list[dict[str, Any]] = [
        {"code": finding.code, "message": finding.message} for finding in scrapes.findings
    ]
    size = document["theory_actual_absolute_difference_pp"]
    if size is not None and size > validation.actual_warning_pp:
        found.append({"code": "ACTUAL_DEVIATION", "difference_pp": size})
    if document["actual"]["reason"] is not None:
        found.append({"code": "NOT_MEASURABLE", "message": document["actual"]["reason"]})
    found += incomplete_ledgers(document["validation"]["ledgers"])
    return found + ledgers_differ(document["agreement"], document["ledgers"]["differences"])


def ledgers_differ(
    agreement: Mapping[str, Any], found: Sequence[Mapping[str, Any]], *, of_hits: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """One warning for each kind of tokens whose ledgers are not equal. There is no tolerance: equal is to the token.

    Each has the causes of its own quantity; `of_hits` are more of those of hits.
    """
    warned = []
    for code, what, tokens, quantity in (
        ("QUERY_TOKENS_DIFFER", "input tokens", "query_tokens", "queries"),
        ("HIT_TOKENS_DIFFER", "hit tokens", "hit_tokens", "hits"),
    ):
        causes = dict.fromkeys(item["cause"] for item in found if item["quantity"] == quantity)
        causes |= dict.fromkeys(of_hits if quantity == "hits" else ())
        if agreement[f"{quantity}_equal"] is False or causes:
            values = ", ".join(
                f"{name} {value}" for name, value in agreement[tokens].items() if value is not None
            )
            warned.append({"code": code, "message": "; ".join([f"{what} differ: {values}", *causes])})
    return warned


def conclude(document: dict[str, Any]) -> None:
    """The verdict in `validation`, from the warnings."""
    document["validation"] |= {
        "status": "PASS_WITH_WARNING" if document["warnings"] else "PASS",
        "actual_status": actual_status(document),
    }


def actual_status(document: dict[str, Any]) -> str:
    """PASS, PASS_WITH_WARNING, or NOT_MEASURED; warnings about the target are not about the measurement."""
    if document["actual"]["global_hit_rate"] is None:
        return "NOT_MEASURED"
    codes = {warning["code"] for warning in document["warnings"]}
    return "PASS_WITH_WARNING" if codes - {"TARGET_UNREACHABLE", "TARGET_DEVIATION"} else "PASS"


def failed_message(document: dict[str, Any]) -> str:
    actual = document["actual"]
    kinds = told([Failures(**item) for item in actual["failures"]])
    return f"{actual['failed_requests']} requests failed or were not sent{kinds and f' ({kinds})'}; {_void(document)}"


def _void(document: dict[str, Any]) -> str:
    actual = document["actual"]
    if "theory" not in document:
        return "what was to be expected is void"
    return (
        f"the theory of {actual['void_requests']} requests "
        f"({actual['void_theoretical_hit_tokens']} of {document['theory']['hit_tokens']} hit tokens) is void"
    )
