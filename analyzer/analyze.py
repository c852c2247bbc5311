"""From a measurement to its analysis and its page."""

from collections.abc import Callable
from typing import Any

from analyzer.analysis import Analysis, Show, seal_analysis, show_nothing
from analyzer.analysis_log import analysis_lines
from analyzer.bench.analyze import analyze_bench
from analyzer.document import failed_message
from analyzer.html_report.skeleton import Warn
from analyzer.measurements import find_measurement, latest_complete
from analyzer.multimodal.analyze import image_analysis
from analyzer.recover import finished_measurement
from analyzer.report_page import write_report
from analyzer.texts.analyze import text_analysis
from contract.artifact_check import check_artifacts
from contract.command_log import LOGGER, PhaseTimes, command_log, log_lines
from contract.documents import write_document
from contract.errors import ExitCode, NothingMeasuredError, gravest
from contract.kinds import Mode, is_bench
from contract.manifest import Manifest
from contract.measurement import Measurement
from contract.progress import Progress, silent
from contract.redaction import Redactor
from contract.run_directory import MeasurementDirectory

Analyse = Callable[[Manifest, Measurement, MeasurementDirectory, Progress], dict[str, Any]]
KINDS: dict[Mode, Analyse] = {"text": text_analysis, "mm": image_analysis}
"""Of a measurement of requests; a bench has a summary."""


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
            document = KINDS[manifest.mode](manifest, measurement, directory, progress)
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


def require_records(directory: MeasurementDirectory, measurement: Measurement) -> None:
    """Raises NothingMeasuredError where the run came to its end before its load."""
    if directory.requests.is_file() or measurement.ending in (ExitCode.DONE, ExitCode.REQUESTS_FAILED):
        return
    phase = f"in its {measurement.phases[-1].name} phase" if measurement.phases else "before its first phase"
    raise NothingMeasuredError(
        f"{directory.root}: holds no requests; the run ended {phase}: {measurement.error}", measurement.ending
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
        return code, failed_message(document)
    if code == ExitCode.INCONCLUSIVE:
        return code, f"no hit rate: {actual['reason'] or 'the measurement says that it is only partial'}"
    return code, f"the run did not get through: {measurement.error}"
