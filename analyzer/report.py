"""`report`: latency and throughput of exactly one measurement, as a document, two files and tables."""

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from analyzer.actual import reported
from analyzer.analysis import read_analysis
from analyzer.measurements import find_measurement, latest_complete
from analyzer.multimodal.requests import requests_of
from analyzer.performance import (
    LABELS,
    METRICS,
    NOT_STREAMED,
    Performance,
    Summary,
    as_rows,
    common_metrics,
    measure_performance,
    untimed_note,
)
from analyzer.recover import finished_measurement
from analyzer.request_table import RequestTable
from contract.command_log import command_log, log_lines
from contract.documents import whole_file, write_document
from contract.errors import ArtifactError
from contract.manifest import Manifest
from contract.planned import UNKNOWN
from contract.redaction import Redactor
from contract.run_directory import MeasurementDirectory

COLUMNS = ("Stage", "Average", "Min", "Max", "Median", "P75", "P90", "P99", "N")
CSV_HEADER = ("Performance Parameters", *COLUMNS)
PER_CHUNK = "ITL is the gap between two chunks; an engine may put several tokens into one"


def performance_report(manifest: Manifest, stamp: str | None = None) -> dict[str, Any]:
    """Report on one measurement, by default the latest complete one; writes report.csv and report.json beside it.

    Raises ArtifactError when there is no such measurement, or it recorded no requests.
    """
    with command_log(manifest.directory.log("report"), Redactor()) as log:
        directory, measurement = find_measurement(manifest, stamp or _latest(manifest))
        measurement = finished_measurement(directory, measurement)
        requests = requests_of(manifest, directory, measurement)
        load = measurement.load
        # The driver's record is missing after a kill; an answer that was streamed has chunks.
        streamed = load.stream if load else bool((requests.attempts.chunks > 0).any())
        performance = measure_performance(
            requests, directory, streamed=streamed, wall_seconds=load.wall_seconds if load else None
        )
        common = common_metrics(performance, load)
        paths = {name: directory.root / f"report.{name}" for name in ("csv", "json")}
        with whole_file(paths["csv"]) as file:
            file.write(csv_text(performance).encode())
        write_document(paths["json"], common)
        log.info("report on %s: %d requests answered", directory.stamp, performance.success_requests)
        log_lines(log, _lines(performance, common))
        log.info("written: %s and %s", paths["csv"], paths["json"])
    return {
        "run_id": manifest.document["run_id"],
        "measurement": directory.stamp,
        "status": measurement.status,
        "csv": str(paths["csv"]),
        "json": str(paths["json"]),
        "metrics": {name: _numbers(name, summary) for name, summary in performance.summaries.items()},
        "common": common,
        "unavailable": performance.unavailable,
        "chunks": _chunks(performance),
        "untimed": performance.untimed,
        "hit_rate": _hit_rate(manifest, directory, requests),
        "failures": {
            "attempts": requests.attempts.failures(),
            "not_sent": int((requests.last == UNKNOWN).sum()),
        },
    }


def _lines(performance: Performance, common: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The figures, for the log."""
    for name, summary in performance.summaries.items():
        if summary is None:
            yield f"{name}: not known ({performance.unavailable[name]})"
        else:
            yield (
                f"{name} ({METRICS[name]}): average {summary.average:.3f}, min {summary.minimum:.3f}, median "
                f"{summary.median:.3f}, P90 {summary.p90:.3f}, P99 {summary.p99:.3f}, max {summary.maximum:.3f}, "
                f"N {summary.count}"
            )
    for name, values in common.items():
        yield f"{name}: {values['total']}"


def _latest(manifest: Manifest) -> str:
    stamp = latest_complete(manifest)
    if stamp is None:
        known = ", ".join(sorted(path.name for path in manifest.directory.runs.glob("*"))) or "none"
        raise ArtifactError(
            f"{manifest.directory.runs}: holds no complete measurement; run hitlab run, or name one with "
            f"--measurement (there: {known})"
        )
    return stamp


def _numbers(name: str, summary: Summary | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    return {
        "Stage": "total",
        "Average": summary.average,
        "Min": summary.minimum,
        "Max": summary.maximum,
        "Median": summary.median,
        "P75": summary.p75,
        "P90": summary.p90,
        "P99": summary.p99,
        "N": summary.count,
        "unit": METRICS[name],
    }


def csv_text(performance: Performance) -> str:
    """The known metrics in the form of AISBench's performance CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    writer.writerows((name, *cells) for name, cells in as_rows(performance.summaries))
    return text.getvalue()


def _chunks(performance: Performance) -> dict[str, Any]:
    chunks, tokens = performance.chunks, performance.output_tokens
    return {
        "chunks": chunks,
        "output_tokens": tokens,
        "tokens_per_chunk": tokens / chunks if chunks else None,
        "note": PER_CHUNK if chunks is not None else NOT_STREAMED,
    }


def _hit_rate(manifest: Manifest, directory: MeasurementDirectory, requests: RequestTable) -> dict[str, Any]:
    """Theory, the counters' rate as the analysis has it, and what the answers reported."""
    actual, reason = None, f"not analysed yet; run hitlab analyze --measurement {directory.stamp}"
    theory = manifest.document["prefix_cache"]["theoretical_hit_rate"] if manifest.mode == "text" else None
    if directory.analysis.is_file():
        try:
            analysis = read_analysis(directory.analysis)
        except ArtifactError as error:
            reason = str(error)
        else:
            theory, analysed = analysis["theoretical_hit_rate"], analysis["actual"]
            actual, reason = analysed["global_hit_rate"], analysed["reason"]
    answers = reported(requests, np.ones(requests.count, dtype=np.bool_))
    return {
        "theoretical": theory,
        "actual": actual,
        "actual_reason": reason,
        "cached_tokens": answers["hit_rate"],
        "cached_tokens_reason": answers["reason"],
    }


def report_title(report: dict[str, Any]) -> str:
    return f"Performance of measurement {report['measurement']} ({report['status']}) of task [{report['run_id']}]:"


def report_tables(report: dict[str, Any]) -> list[Table]:
    """Two tables: the distributions, and the load as a whole."""
    metrics = Table(*CSV_HEADER, box=box.DOUBLE_EDGE)
    for name, row in report["metrics"].items():
        cells = [""] * len(COLUMNS)
        if row is not None:
            unit = "" if row["unit"] == "tokens" else f" {row['unit']}"
            numbers = [f"{row[column]:,.2f}{unit}" for column in COLUMNS[1:-1]]
            cells = [row["Stage"], *numbers, str(row["N"])]
        else:
            cells[1] = "N/A"
        metrics.add_row(name, *cells)
    common = Table("Common Metric", "Value", box=box.DOUBLE_EDGE)
    for name, item in report["common"].items():
        common.add_row(LABELS.get(name, name), "N/A" if item["total"] is None else str(item["total"]))
    rate = report["hit_rate"]
    for title, key in (("Theoretical", "theoretical"), ("Actual", "actual"), ("Answers'", "cached_tokens")):
        common.add_row(f"{title} Hit Rate", "N/A" if rate[key] is None else f"{rate[key]:.2%}")
    return [metrics, common]


def report_notes(report: dict[str, Any]) -> list[str]:
    """Lines below the tables: what is missing and why, and how many tokens a chunk has."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in report["unavailable"].items():
        by_reason.setdefault(reason, []).append(name)
    notes = [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]
    if report["untimed"] and report["metrics"]["TPOT"] is not None:
        notes.append(untimed_note(report["untimed"]))
    chunks = report["chunks"]
    if chunks["chunks"]:
        notes.append(
            f"{chunks['output_tokens']:,} tokens in {chunks['chunks']:,} chunks "
            f"({chunks['tokens_per_chunk']:.2f} per chunk). {chunks['note']}."
        )
    return notes
