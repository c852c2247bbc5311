"""From a measurement to its analysis: differences, ledgers, prediction, agreement with theory, warnings."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from analyzer.actual import (
    client_actual,
    comparable,
    counter_actual,
    no_counters,
    per_request,
    sum_known,
    void_theory,
    why_not_measurable,
)
from analyzer.analysis import Analysis, Show, seal_analysis, show_nothing
from analyzer.analysis_log import analysis_lines
from analyzer.bench.analyze import analyze_bench
from analyzer.causes import Circumstances, explain, version_caveat
from analyzer.engine_cache import engine_cache
from analyzer.failures import Failures, failures_by_kind, told
from analyzer.html_report.report import write_report
from analyzer.html_report.skeleton import Warn
from analyzer.known_causes import KNOWN
from analyzer.kv_usage import damaged_samples, kv_polling, kv_samples, load_window
from analyzer.ledger_states import incomplete_ledgers, ledger_states
from analyzer.ledgers import (
    NAMES,
    Ledger,
    answers_ledger,
    counter_ledgers,
    ledger_differences,
    prediction_ledger,
    unknown_ledger,
)
from analyzer.measurements import find_measurement, latest_complete
from analyzer.output_ledger import NAME as OUTPUT_TOKENS
from analyzer.output_ledger import output_ledger
from analyzer.prediction import Prediction, predict_hits, prediction_document
from analyzer.rank_comparison import ranks_differ
from analyzer.recover import finished_measurement
from analyzer.request_table import RequestTable, request_table
from analyzer.scrapes import ScrapePair, metric_names, metrics_part, stored_pair
from contract.analysis import prepared_analysis
from contract.artifact_check import check_artifacts
from contract.command_log import LOGGER, PhaseTimes, command_log, log_lines
from contract.documents import write_document
from contract.engine_version import parse_version
from contract.errors import ExitCode, NothingMeasuredError, gravest
from contract.kinds import is_bench
from contract.manifest import Manifest
from contract.measurement import Measurement
from contract.planned import UNKNOWN
from contract.progress import Progress, silent
from contract.redaction import Redactor
from contract.run_directory import MeasurementDirectory
from contract.scenario import Validation

UNSETTLED = {"COUNTERS_NOT_SETTLED", "FOREIGN_TRAFFIC", "AFTER_SCRAPE_MISSING"}
"""Findings that say why the counters are not settled."""


def analyze_measurement(
    manifest: Manifest,
    stamp: str,
    progress: Progress = silent,
    *,
    show: Show = show_nothing,
    warn: Warn = LOGGER.warning,
) -> Analysis:
    """Analyse `result/runs/<stamp>/` and write its report.html. The analysis of the latest complete one also becomes that
    of the run directory.

    Nothing of an earlier analysis is read, so analysing again gives the same document. Of a bench, whose analysis is a
    summary, that is written. `show` gets the result before report.html is made, `warn` is told what that one lacks.
    """
    if is_bench(manifest.document):
        return analyze_bench(manifest, stamp, show=show, warn=warn)
    with command_log(manifest.directory.log("analyze"), Redactor()) as log:
        phase = PhaseTimes()
        phase.tell(log)
        directory, measurement = find_measurement(manifest, stamp)
        log.info("measurement %s (%s)", directory.root, measurement.status)
        with phase("check the data"):
            check_artifacts(manifest, progress)
        measurement = finished_measurement(directory, measurement)
        require_records(directory, measurement)
        with phase("analyse"):
            if manifest.mode == "mm":
                from analyzer.multimodal.analyze import image_analysis  # builds on what is in this module

                document = image_analysis(manifest, measurement, directory)
            else:
                document = measured_analysis(manifest, measurement, directory, progress)
        document = seal_analysis(document)
        write_document(directory.analysis, document)
        path = directory.analysis
        if stamp == latest_complete(manifest, pass_over_damaged=True):
            write_document(manifest.directory.analysis, document)
            path = manifest.directory.analysis
        log_lines(log, analysis_lines(document))
        log.info("written: %s", directory.analysis)
        if path != directory.analysis:
            log.info("written: %s", path)
        analysis = Analysis(document, path, *ending(document, measurement))
        show(analysis)
        with phase("draw the report"):
            write_report(manifest, directory, warn=warn)
    return analysis


def measured_analysis(
    manifest: Manifest,
    measurement: Measurement,
    directory: MeasurementDirectory,
    progress: Progress = silent,
) -> dict[str, Any]:
    """The prepared analysis with `runtime`, `actual`, `ledgers`, `prediction` and the differences (reference 4.5)."""
    validation = Validation.model_validate(measurement.validation)
    service = measurement.service
    requests = request_table(manifest.directory.full, directory)
    scrapes = stored_pair(directory, service, measurement.findings)
    samples = kv_samples(directory, measurement)
    polling = kv_polling(
        samples, service["poll_interval_seconds"], load_window(measurement, requests.attempts)
    )
    version = measurement.engine.version if measurement.engine else None
    cache = engine_cache(
        scrapes.before_snapshot,
        manifest.effective_config["tokenizer"]["block_size"],
        version,
    )
    found = {finding.code for finding in measurement.findings}
    prediction = predict_hits(
        manifest, requests, cache, drops_last_block="DROPS_LAST_BLOCK" in found, progress=progress
    )
    document = prepared_analysis(manifest.document, validation)
    document["status"] = measurement.status
    document["runtime"] = runtime_document(measurement, scrapes, polling)
    document["actual"] = counters_part(scrapes, polling["summary"], requests) | {
        "client": client_actual(requests),
        "requests": per_request(requests),
        **void_theory(requests),
    }
    document["prediction"] = prediction_document(requests, prediction)
    ranks = service["dp_size"]
    ledgers = ledgers_of_scrapes(scrapes, cache.block_size, document["actual"]) | {
        "cached_tokens": answers_ledger(requests, ranks),
        "prediction": prediction_ledger(document["prediction"], prediction, requests, ranks),
    }
    seen = circumstances(
        scrapes,
        version=version,
        waiting_peak=polling["summary"]["requests_waiting_peak"],
        settled=measurement.settled,
        unanswered=requests.failed + requests.retried,
        findings=frozenset(found),
        all_but_one=_all_but_one(requests),
        one_block_less=_one_block_less(requests, prediction),
        prompt_tokens_differing=document["actual"]["requests"]["prompt_tokens_differing"],
        emptied=emptied(measurement),
        prediction_caveats=prediction.caveats,
    )
    output = output_ledger(scrapes.difference, requests, ranks, seen)
    document["ledgers"] = ledgers_document(ledgers, seen) | {OUTPUT_TOKENS: output.document()}
    document |= differences(document["theoretical_hit_rate"], document["actual"]["global_hit_rate"])
    theory = document["theory"]["hit_tokens"], int(requests.plan.input_tokens.sum())
    document["agreement"] = agreement(*theory, ledgers)
    document["validation"]["ledgers"] = ledger_states(ledgers, *theory) | {OUTPUT_TOKENS: output.state()}
    document["warnings"] += run_findings(measurement) + damaged_samples(polling)
    document["warnings"] += warnings(document, scrapes, validation)
    if not requests.void.any():
        document["warnings"] += ranks_differ(document["theory"]["dp"], ledgers["counters"])
    document["warnings"] += output.warnings() + failed_or_repeated(document, requests, directory)
    conclude(document)
    return document


def failed_or_repeated(
    document: dict[str, Any], requests: RequestTable, directory: MeasurementDirectory
) -> list[dict[str, Any]]:
    """Findings about requests that were not answered at their first attempt; notes the kinds of failures in `actual`."""
    failures = failures_by_kind(directory) if requests.failed or requests.retried else []
    document["actual"]["failures"] = [asdict(item) for item in failures]
    found = []
    if requests.failed:
        found.append({"code": "REQUESTS_FAILED", "message": _failed_message(document)})
    if requests.retried:
        message = (
            f"{requests.retried} attempts were repeated after a failure ({told(failures)}): they may have found what the "
            f"attempt before had left in the cache; {_void(document)}"
        )
        found.append({"code": "ATTEMPTS_REPEATED", "message": message})
    return found


def require_records(directory: MeasurementDirectory, measurement: Measurement) -> None:
    """Raises NothingMeasuredError where the run came to its end before its load."""
    if directory.requests.is_file() or measurement.ending in (ExitCode.DONE, ExitCode.REQUESTS_FAILED):
        return
    phase = f"in its {measurement.phases[-1].name} phase" if measurement.phases else "before its first phase"
    raise NothingMeasuredError(
        f"{directory.root}: holds no requests; the run ended {phase}: {measurement.error}", measurement.ending
    )


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


def ledgers_of_scrapes(scrapes: ScrapePair, block_size: int, actual: Mapping[str, Any]) -> dict[str, Ledger]:
    """H1, H2 and H4. Counters that moved in a way that gives no hit rate are no ledger either."""
    after = scrapes.after_snapshot
    if scrapes.difference is None or after is None:
        reason = scrapes.reason or "the scrapes are not there"
        return {name: unknown_ledger(reason) for name in ("counters", "by_source", "computed")}
    counted = scrapes.difference.queries is not None and scrapes.difference.hits is not None
    names = after.metric_names
    return counter_ledgers(scrapes.difference, names, block_size, actual["reason"] if counted else None)


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


def _all_but_one(requests: RequestTable) -> bool:
    """Whether every answer says that all of its prompt but the last token was cached."""
    compared = comparable(requests)
    return bool(
        compared.any() and (requests.cached_tokens[compared] == requests.prompt_tokens[compared] - 1).all()
    )


def _one_block_less(requests: RequestTable, prediction: Prediction) -> bool:
    """Whether every request that hit something else than predicted hit exactly one block less."""
    compared = comparable(requests) & (prediction.tokens != UNKNOWN)
    missing = (prediction.tokens - requests.cached_tokens)[compared]
    missing = missing[missing != 0]
    return bool(missing.size and (missing == prediction.cache.block_size).all())


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


def agreement(theory_tokens: int, planned_tokens: int, ledgers: Mapping[str, Ledger]) -> dict[str, Any]:
    """Theory and all ledgers in tokens, and whether they are equal. None: that ledger is not known."""
    totals = {name: ledgers[name].total for name in NAMES}
    hits = {"theory": theory_tokens, **{name: totals[name].hits for name in NAMES}}
    queries = {
        "planned": planned_tokens,
        "counters": totals["counters"].queries,
        "by_source": totals["by_source"].queries,
        "prompt_tokens": totals["cached_tokens"].queries,
        "computed": totals["computed"].queries,
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


def _failed_message(document: dict[str, Any]) -> str:
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


def ending(document: dict[str, Any], measurement: Measurement) -> tuple[ExitCode, str | None]:
    """How the command ends: as the measurement did, or worse by what the analysis adds. And the line that says so."""
    actual = document["actual"]
    code = gravest(
        measurement.ending,
        ExitCode.REQUESTS_FAILED if actual["failed_requests"] else ExitCode.DONE,
        ExitCode.INCONCLUSIVE if actual["global_hit_rate"] is None else ExitCode.DONE,
    )
    if code == ExitCode.DONE:
        return code, None
    if code == ExitCode.INTERRUPTED:
        return code, "the run was interrupted; what was measured is kept"
    if code == ExitCode.REQUESTS_FAILED:
        return code, _failed_message(document)
    if code == ExitCode.INCONCLUSIVE:
        return code, f"no hit rate: {actual['reason'] or 'the measurement says that it is only partial'}"
    return code, f"the run did not get through: {measurement.error}"
