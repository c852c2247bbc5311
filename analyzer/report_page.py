"""`report.html`: a measurement on one page that needs nothing beside itself."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from analyzer.analysis import read_analysis
from analyzer.html_report import charts, ledger_view, page, series
from analyzer.html_report.drawing import Chart
from analyzer.html_report.engine_timeline import engine_timeline
from analyzer.html_report.histogram import histogram
from analyzer.html_report.skeleton import FOLDER, Warn, drawn, environment, policy, tell_of_missing
from analyzer.kv_usage import kv_samples
from analyzer.ledger_states import ledger_line
from analyzer.measurements import read_measurement
from analyzer.multimodal import page as image_page
from analyzer.multimodal.requests import requests_of
from analyzer.performance import Performance, measure_performance
from analyzer.request_table import RequestTable
from analyzer.table import result_rows
from contract.command_log import LOGGER
from contract.documents import whole_file
from contract.errors import ArtifactError
from contract.foreign_text import visible
from contract.manifest import Manifest
from contract.measurement import Measurement
from contract.run_directory import MeasurementDirectory


def write_report(
    manifest: Manifest,
    directory: MeasurementDirectory,
    requests: RequestTable | None = None,
    *,
    warn: Warn = LOGGER.warning,
) -> Path:
    """Write `report.html` of a measurement that has been analysed, from what lies in its directory alone.

    `requests` saves reading them again. `warn` is told when the charts cannot be drawn. Equal input gives equal bytes.
    Raises ArtifactError.
    """
    html = render(manifest, directory, requests, warn=warn)
    with whole_file(directory.report) as file:
        file.write(html.encode())
    return directory.report


def render(
    manifest: Manifest,
    directory: MeasurementDirectory,
    requests: RequestTable | None = None,
    *,
    warn: Warn = LOGGER.warning,
) -> str:
    """The page. Raises ArtifactError when the analysis is missing or unreadable."""
    analysis = read_analysis(directory.analysis)
    measurement = read_measurement(directory) if directory.measurement.is_file() else None
    images = manifest.mode == "mm"
    no_requests = None
    if requests is None:
        try:
            requests = requests_of(manifest, directory, measurement)
        except ArtifactError:
            no_requests = (
                "two saved scrapes were analysed, which hold no requests"
                if measurement is None
                else "no request was recorded; the run ended before its load"
            )
    performance = _performance(directory, requests, measurement)
    style = (FOLDER / "report.css").read_text(encoding="utf-8")
    context: dict[str, Any] = {
        "style": Markup(style),  # noqa: S704 - our own file
        "policy": policy(style),
        "run_id": analysis["run_id"],
        "stamp": directory.stamp,
        "status": analysis["status"],
        "measurement": measurement,
        "verdict": image_page.verdict(analysis) if images else ledger_view.verdict(analysis),
        "result_table": page.result_table(result_rows(analysis), analysis["actual"]["reason"]),
        "ledger_table": image_page.ledger_table(analysis) if images else ledger_view.ledger_table(analysis),
        "ledger_line": ledger_line(analysis["validation"]["ledgers"]),
        "caveats": analysis["prediction"].get("caveats", []),
        "warnings": image_page.shown_warnings(analysis) if images else page.shown_warnings(analysis),
        "no_requests": no_requests,
        "main_charts": [] if images else drawn(_request_charts(analysis, requests)),
        "failed": _failed(directory, requests),
        "failed_count": analysis["actual"].get("failed_requests"),
        "void_count": analysis["actual"].get("void_requests"),
        "first_token_chart": drawn([_first_tokens(requests)]),
        "latency_charts": drawn(_latency_charts(directory, requests, performance)),
        "latency_table": page.latency_table(performance, no_requests),
        "load_table": page.load_table(performance, measurement),
        "engine_charts": drawn(
            [engine_timeline(directory, measurement) if measurement is not None else None]
        ),
        "no_samples": _why_no_samples(directory, measurement),
        "group_table": image_page.group_table(analysis)
        if images
        else page.group_table(analysis, manifest.document),
        "rank_table": image_page.rank_table(analysis) if images else page.rank_table(analysis),
        "phase_table": page.phase_table(measurement),
        "check_table": page.check_table(measurement),
        "facts": (image_page if images else page).facts(analysis, manifest, measurement, directory.stamp),
        "steps": page.steps(manifest, measurement, directory),
    }
    tell_of_missing(context, directory.report, warn)
    return visible(environment().get_template("report.html.j2").render(context))


def _request_charts(analysis: dict[str, Any], requests: RequestTable | None) -> list[Chart | None]:
    if requests is None or not requests.count:
        return []
    curve = series.cumulative(requests)
    failed = ~requests.answered
    return [
        charts.cumulative_chart(curve, analysis["requested_target_hit_rate"], failed, requests.void),
        charts.ahead_chart(curve),
    ]


def _first_tokens(requests: RequestTable | None) -> Chart | None:
    return None if requests is None else charts.first_token_chart(series.first_tokens(requests))


def _performance(
    directory: MeasurementDirectory, requests: RequestTable | None, measurement: Measurement | None
) -> Performance | None:
    if requests is None:
        return None
    load = measurement.load if measurement else None
    return measure_performance(
        requests,
        directory,
        streamed=load.stream if load else bool((requests.attempts.chunks > 0).any()),
        wall_seconds=load.wall_seconds if load else None,
    )


def _latency_charts(
    directory: MeasurementDirectory, requests: RequestTable | None, performance: Performance | None
) -> list[Chart | None]:
    found: list[Chart | None] = []
    for name in series.LATENCIES:
        summary = performance.summaries[name] if performance else None
        if requests is not None and summary is not None:
            pieces = series.latencies(requests, directory, name)
            counted = histogram(pieces, summary.minimum, summary.median, summary.maximum, summary.count)
            found.append(charts.latency_chart(name, summary, counted))
    return found


def _failed(directory: MeasurementDirectory, requests: RequestTable | None) -> dict[str, Any] | None:
    if requests is None or not (failures := requests.attempts.failures()):
        return None
    return {
        "kinds": failures,
        "attempts": series.failed_attempts(directory),
        "total": sum(failures.values()),
    }


def _why_no_samples(directory: MeasurementDirectory, measurement: Measurement | None) -> str:
    if measurement is None:
        return "two saved scrapes were analysed; nothing was sampled"
    if damaged := kv_samples(directory, measurement).damaged:
        return damaged
    if measurement.service["poll_interval_seconds"] == 0:
        return "service.poll_interval_seconds is 0, so nothing was sampled"
    failures = (
        f"; {measurement.kv_polling_failures} samples failed" if measurement.kv_polling_failures else ""
    )
    return (
        f"the load was over before the first sample (service.poll_interval_seconds is "
        f"{measurement.service['poll_interval_seconds']:g}){failures}"
    )
