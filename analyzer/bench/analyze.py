"""From the records of a bench to its analysis and its page."""

from typing import Any

from analyzer.analysis import Analysis, Show, show_nothing
from analyzer.bench.page import write_page
from analyzer.bench.summary import exit_code, failed_message, no_ledger, summarize_bench
from analyzer.html_report.skeleton import Warn
from contract.command_log import LOGGER, command_log
from contract.documents import write_document
from contract.errors import ArtifactError, ExitCode
from contract.manifest import Manifest
from contract.redaction import Redactor
from contract.run_directory import MeasurementDirectory


def analyze_bench(
    manifest: Manifest, stamp: str, *, show: Show = show_nothing, warn: Warn = LOGGER.warning
) -> Analysis:
    """Write `analysis.json` and `report.html` of a bench's measurement. Raises ArtifactError when there is none.

    `show` and `warn` as of `analyze_measurement`.
    """
    directory = MeasurementDirectory(manifest.directory.runs / stamp)
    if not directory.measurement.is_file():
        raise ArtifactError(f"{directory.root}: holds no measurement of a bench")
    with command_log(manifest.directory.log("analyze"), Redactor()) as log:
        document = summarize_bench(manifest, directory)
        write_document(directory.analysis, document)
        log.info("analysed %s: %s", stamp, document["status"])
        analysis = Analysis(document, directory.analysis, *_ending(document))
        show(analysis)
        write_page(document, directory, warn=warn)
    return analysis


def _ending(document: dict[str, Any]) -> tuple[ExitCode, str | None]:
    code = exit_code(document)
    if code == ExitCode.INCONCLUSIVE:
        return code, no_ledger(document)
    return code, failed_message(document) if code == ExitCode.REQUESTS_FAILED else None
