"""From a measurement to its analysis: differences, agreement with theory, warnings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.actual import client_actual, counter_actual, per_request, void_theory
from analyzer.kv_usage import kv_polling
from analyzer.request_table import MeasuredRequest, measured_requests
from contract.analysis import prepared_analysis
from contract.command_log import command_log
from contract.documents import read_document, write_document
from contract.errors import ArtifactError, ExitCode
from contract.manifest import Manifest
from contract.measurement import Measurement
from contract.redaction import Redactor
from contract.run_directory import MeasurementDirectory
from contract.scenario import Validation
from contract.scrapes import split_scrapes
from enginemetrics.difference import EngineDifference, subtract
from enginemetrics.snapshot import EngineSnapshot, read_snapshot


@dataclass(frozen=True)
class Analysis:
    """The document, where it is, and how the command ends."""

    document: dict[str, Any]
    path: Path
    exit_code: ExitCode
    message: str | None


def analyze_measurement(manifest: Manifest, stamp: str) -> Analysis:
    """Analyse `result/runs/<stamp>/`; a complete measurement's analysis also becomes that of the run directory."""
    directory = MeasurementDirectory(manifest.directory.runs / stamp)
    if not directory.measurement.is_file():
        known = ", ".join(sorted(path.name for path in manifest.directory.runs.glob("*"))) or "none"
        raise ArtifactError(f"{manifest.directory.runs}: has no measurement {stamp} (there: {known})")
    with command_log(manifest.directory.log("analyze"), Redactor()) as log:
        measurement = read_measurement(directory)
        if measurement.manifest_sha256 != manifest.sha256:
            raise ArtifactError(
                f"{directory.measurement}: was made with another manifest than {manifest.directory.manifest}"
            )
        document = measured_analysis(manifest, measurement, directory)
        write_document(directory.analysis, document)
        path = directory.analysis
        if measurement.status == "complete":
            write_document(manifest.directory.analysis, document)
            path = manifest.directory.analysis
        log.info("analysed %s: %s", stamp, document["actual"])
    return Analysis(document, path, *_ending(document))


def read_measurement(directory: MeasurementDirectory) -> Measurement:
    return Measurement.model_validate(read_document(directory.measurement, "measurement"))


def measured_analysis(
    manifest: Manifest, measurement: Measurement, directory: MeasurementDirectory
) -> dict[str, Any]:
    """The prepared analysis with `runtime`, `actual` and the differences added (reference 4.5)."""
    validation = Validation.model_validate(measurement.validation)
    document = prepared_analysis(manifest.document, validation)
    texts = [read_scrape(directory.baseline), read_scrape(directory.after)]
    before, after = (service_snapshot(text, measurement.service) for text in texts)
    difference = subtract(before, after)
    polling = kv_polling(directory, measurement.service["poll_interval_seconds"])
    requests = measured_requests(manifest.directory.full, directory)
    usage = {rank.rank: rank.kv_cache_usage for rank in after.ranks}
    document["status"] = measurement.status
    document["runtime"] = _runtime(measurement, texts, (before, after), polling)
    document["actual"] = counter_actual(difference, usage, polling["summary"]) | {
        "client": client_actual(requests),
        "requests": per_request(requests),
        **void_theory(requests),
    }
    document |= differences(document["theoretical_hit_rate"], document["actual"]["global_hit_rate"])
    document["agreement"] = agreement(document, requests)
    document["warnings"] += warnings(document, measurement, difference, validation)
    document["validation"] |= {
        "status": "PASS_WITH_WARNING" if document["warnings"] else "PASS",
        "actual_status": actual_status(document),
    }
    return document


def actual_status(document: dict[str, Any]) -> str:
    """PASS, WARNING, or NOT_MEASURED; warnings about the target are not about the measurement."""
    if document["actual"]["global_hit_rate"] is None:
        return "NOT_MEASURED"
    codes = {warning["code"] for warning in document["warnings"]}
    return "WARNING" if codes - {"TARGET_UNREACHABLE", "TARGET_DEVIATION"} else "PASS"


def read_scrape(path: Path) -> str:
    """The text of a stored scrape."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ArtifactError(
            f"{path}: cannot be read ({error.strerror}); the run ended before it was taken"
        ) from error


def service_snapshot(text: str, service: dict[str, Any], source: str = "metrics") -> EngineSnapshot:
    """The stored text of a scrape, read with the `service` section it was taken with."""
    pages = split_scrapes(text)
    return read_snapshot(
        pages,
        model=service["model"],
        dp_size=service["dp_size"],
        engine_label_map=service["engine_label_map"],
        sources=[source] * len(pages),
    )


def _runtime(
    measurement: Measurement,
    texts: Sequence[str],
    snapshots: Sequence[EngineSnapshot],
    polling: dict[str, Any],
) -> dict[str, Any]:
    names = _metric_names(snapshots[0])
    return {
        "phases": [phase.name for phase in measurement.phases],
        "phase_times": [phase.model_dump(mode="json") for phase in measurement.phases],
        "precheck": {
            "ok": all(check.status != "failed" for check in measurement.preflight),
            "ranks": [rank.rank for rank in snapshots[0].ranks],
            "metric_names": names,
            "checks": [check.model_dump(mode="json") for check in measurement.preflight],
        },
        "warmup": [warmup.model_dump(mode="json") for warmup in measurement.warmup],
        "metrics_baseline": metrics_part(texts[0], snapshots[0]),
        "metrics_after": metrics_part(texts[1], snapshots[1]),
        "kv_cache_polling": polling,
        "engine": None if measurement.engine is None else measurement.engine.model_dump(mode="json"),
        "load": None if measurement.load is None else measurement.load.model_dump(mode="json"),
        "measurement": measurement.stamp,
        "started_at": measurement.started_at,
        "finished_at": measurement.finished_at,
        "settled": measurement.settled,
    }


def _metric_names(snapshot: EngineSnapshot) -> dict[str, str | None]:
    names = snapshot.metric_names
    return {"queries": names.queries, "hits": names.hits, "kv": names.kv_cache_usage}


def metrics_part(text: str, snapshot: EngineSnapshot) -> dict[str, Any]:
    """A scrape as `runtime.metrics_*` shows it, raw text included."""
    return {
        "metric_names": _metric_names(snapshot),
        "by_dp": {
            str(rank.rank): {
                "queries": rank.queries,
                "hits": rank.hits,
                "kv_cache_usage": rank.kv_cache_usage,
            }
            for rank in snapshot.ranks
        },
        "raw_prometheus": text,
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


def agreement(document: dict[str, Any], requests: Sequence[MeasuredRequest]) -> dict[str, Any]:
    """The ledgers in tokens, side by side, and whether they are equal. None: that ledger is not known."""
    actual, planned = document["actual"], sum(request.input_tokens for request in requests)
    counts_tokens = actual["unit"] == "tokens"
    hits = {
        "theory": document["theory"]["hit_tokens"],
        "counters": actual["global_hits"] if counts_tokens else None,
        "cached_tokens": actual["client"]["cached_tokens"],
    }
    queries = {
        "planned": planned,
        "counters": actual["global_queries"] if counts_tokens else None,
        "prompt_tokens": actual["client"]["prompt_tokens"],
    }
    return {
        "hit_tokens": hits,
        "query_tokens": queries,
        "hits_equal": _equal(hits),
        "queries_equal": _equal(queries),
    }


def ledgers_differ(agreement: dict[str, Any]) -> list[dict[str, Any]]:
    """One warning for each kind of tokens whose ledgers are not equal. There is no tolerance: equal is to the token."""
    return [
        {
            "code": code,
            "message": f"{what} differ: "
            + ", ".join(f"{name} {value}" for name, value in agreement[ledgers].items() if value is not None),
        }
        for code, what, ledgers, equal in (
            ("QUERY_TOKENS_DIFFER", "input tokens", "query_tokens", agreement["queries_equal"]),
            ("HIT_TOKENS_DIFFER", "hit tokens", "hit_tokens", agreement["hits_equal"]),
        )
        if equal is False
    ]


def _equal(ledgers: dict[str, int | None]) -> bool | None:
    """Whether all known ledgers agree; None when fewer than two are known."""
    known = [value for value in ledgers.values() if value is not None]
    return len(set(known)) == 1 if len(known) > 1 else None


def warnings(
    document: dict[str, Any], measurement: Measurement, difference: EngineDifference, validation: Validation
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        *({"code": finding.code, "message": finding.message} for finding in measurement.findings),
        *({"code": finding.code, "message": finding.message} for finding in difference.findings),
    ]
    found += actual_deviation(document, validation)
    found += ledgers_differ(document["agreement"])
    failed = document["actual"]["failed_requests"]
    if failed:
        found.append({"code": "REQUESTS_FAILED", "message": _failed_message(document)})
    return found


def actual_deviation(document: dict[str, Any], validation: Validation) -> list[dict[str, Any]]:
    """ACTUAL_DEVIATION, when actual and theory differ by more than the threshold."""
    size = document["theory_actual_absolute_difference_pp"]
    if size is None or size <= validation.actual_warning_pp:
        return []
    return [{"code": "ACTUAL_DEVIATION", "difference_pp": size}]


def _failed_message(document: dict[str, Any]) -> str:
    actual = document["actual"]
    return (
        f"{actual['failed_requests']} requests failed or were not sent; the theory of {actual['void_requests']} requests "
        f"({actual['void_theoretical_hit_tokens']} of {document['theory']['hit_tokens']} hit tokens) is void"
    )


def _ending(document: dict[str, Any]) -> tuple[ExitCode, str | None]:
    if document["status"] == "interrupted":
        return ExitCode.INTERRUPTED, "the run was interrupted; what was measured is kept"
    if document["actual"]["failed_requests"]:
        return ExitCode.REQUESTS_FAILED, _failed_message(document)
    if document["actual"]["global_hit_rate"] is None:
        return (
            ExitCode.INCONCLUSIVE,
            "the engine's counters give no hit rate; see warnings and unavailable in the analysis",
        )
    return ExitCode.DONE, None
