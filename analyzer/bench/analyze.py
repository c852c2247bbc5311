"""From the records of a bench to its analysis and its page."""

from analyzer.analysis import Analysis
from analyzer.bench.page import write_page
from analyzer.bench.summary import exit_code, failed_message, no_ledger, summarize_bench
from contract.command_log import command_log
from contract.documents import write_document
from contract.errors import ArtifactError, ExitCode
from contract.manifest import Manifest
from contract.redaction import Redactor
from contract.run_directory import MeasurementDirectory


def analyze_bench(manifest: Manifest, stamp: str) -> Analysis:
    """Write `analysis.json` and `report.html` of a bench's measurement. Raises ArtifactError when there is none."""
    directory = MeasurementDirectory(manifest.directory.runs / stamp)
    if not directory.measurement.is_file():
        raise ArtifactError(f"{directory.root}: holds no measurement of a bench")
    with command_log(manifest.directory.log("analyze"), Redactor()) as log:
        document = summarize_bench(manifest, directory)
        write_document(directory.analysis, document)
        write_page(document, directory)
        log.info("analysed %s: %s", stamp, document["status"])
    code = exit_code(document)
    message = no_ledger(document) if code == ExitCode.INCONCLUSIVE else None
    if code == ExitCode.REQUESTS_FAILED:
        message = failed_message(document)
    return Analysis(document, directory.analysis, code, message)
