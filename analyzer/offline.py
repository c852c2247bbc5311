"""`analyze --baseline A --after B`: an actual hit rate from two saved Prometheus scrapes, without an engine."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from analyzer.analysis import Analysis, Show, seal_analysis, show_nothing
from analyzer.analysis_log import analysis_lines
from analyzer.document import (
    agreement,
    circumstances,
    conclude,
    counters_part,
    differences,
    ledgers_document,
    page_of,
    warnings,
)
from analyzer.engine_cache import engine_cache
from analyzer.html_report.skeleton import Warn
from analyzer.ledger_states import ledger_states
from analyzer.ledgers import Traffic, read_ledgers
from analyzer.output_ledger import NAME as OUTPUT_TOKENS
from analyzer.rank_comparison import ranks_differ
from analyzer.report_page import write_report
from analyzer.scrape_settings import ScrapeSettings, scrape_settings
from analyzer.scrapes import ScrapePair, load_scrape, metrics_part, pair
from contract.analysis import prepared_analysis
from contract.artifact_check import check_artifacts
from contract.command_log import LOGGER, command_log, log_lines
from contract.documents import read_document, write_document, writing
from contract.errors import ArtifactError, ExitCode
from contract.manifest import Manifest
from contract.progress import Progress, silent
from contract.redaction import Redactor

NO_SAMPLES: dict[str, Any] = {
    "by_dp": {},
    "global_peak": None,
    "global_avg": None,
    "reason": "two scrapes hold no samples of the time between them",
}
NO_RECORDS = "two scrapes hold no requests; only a run of HitLab records them"


def analyze_scrapes(
    manifest: Manifest,
    baseline: Path,
    after: Path,
    progress: Progress = silent,
    *,
    scenario: Path | None = None,
    say: Callable[[str], None] = lambda _line: None,
    show: Show = show_nothing,
    warn: Warn = LOGGER.warning,
) -> Analysis:
    """Analyse a pair of scrapes as a new entry under `runs/`, with its report.html.

    It never takes the place of a complete measurement. `scenario`: whose ranks, labels and thresholds to use, see
    `scrape_settings`; `say` is told which they are, and where the analysis is. `show` and `warn` as of
    `analyze_measurement`.
    """
    if manifest.mode == "mm":
        raise ArtifactError(
            f"{manifest.directory.manifest}: what requests with images share is known from the probes of a run, not from "
            "two scrapes; use --measurement with a run of hitlab"
        )
    with command_log(manifest.directory.log("analyze"), Redactor()) as log:
        check_artifacts(manifest, progress)
        settings = scrape_settings(manifest, baseline, after, scenario)
        log.info("scrapes %s and %s", baseline, after)
        log.info("%s", settings.line)
        say(settings.line)
        scrapes = pair(load_scrape(baseline, settings.service), load_scrape(after, settings.service))
        document = seal_analysis(scrapes_analysis(manifest, scrapes, settings))
        directory = manifest.directory.new_measurement()
        for source, target in ((baseline, directory.baseline), (after, directory.after)):
            with writing(target):
                shutil.copyfile(source, target)
        write_document(directory.analysis, document)
        path = directory.analysis
        current = manifest.directory.analysis
        if not current.is_file() or read_document(current, "analysis").get("status") != "complete":
            write_document(current, document)
            path = current
        log_lines(log, analysis_lines(document))
        where = _where(directory.analysis, current, path)
        log.info("%s", where)
        actual = document["actual"]
        analysis = Analysis(document, path, ExitCode.DONE, None)
        if actual["global_hit_rate"] is None:
            analysis = Analysis(document, path, ExitCode.INCONCLUSIVE, f"no hit rate: {actual['reason']}")
        show(analysis)
        say(where)
        write_report(manifest, directory, warn=warn)
    return analysis


def _where(own: Path, current: Path, path: Path) -> str:
    """One line: what was written, and which analysis the run directory has now."""
    if path == current:
        return f"Written to: {own} and, as no complete measurement is there, to {current}"
    return f"Written to: {own}; {current} stays that of the complete measurement"


def scrapes_analysis(manifest: Manifest, scrapes: ScrapePair, settings: ScrapeSettings) -> dict[str, Any]:
    """The prepared analysis with what two scrapes can add to it."""
    planned = manifest.effective_config["tokenizer"]["block_size"]
    cache = engine_cache(scrapes.before_snapshot, planned)
    document = prepared_analysis(manifest.document, settings.validation)
    document["status"] = "analyzed"
    document["runtime"] = {
        "metrics_baseline": metrics_part(scrapes.before),
        "metrics_after": metrics_part(scrapes.after),
        "read_with": settings.document(),
    }
    actual = counters_part(scrapes, NO_SAMPLES, None)
    document["actual"] = actual | {"client": None, "client_reason": NO_RECORDS}
    document["prediction"] = {"hit_tokens": None, "reason": NO_RECORDS}
    ledgers = read_ledgers(Traffic(page_of(scrapes, cache.block_size, actual), NO_RECORDS, NO_RECORDS))
    document["ledgers"] = ledgers_document(ledgers, circumstances(scrapes, version=None))
    document |= differences(document["theoretical_hit_rate"], actual["global_hit_rate"])
    theory = document["theory"]
    document["agreement"] = agreement(theory["hit_tokens"], theory["input_tokens"], ledgers)
    states = ledger_states(ledgers, theory["hit_tokens"], theory["input_tokens"])
    document["validation"]["ledgers"] = states | {OUTPUT_TOKENS: {"status": "absent", "reason": NO_RECORDS}}
    document["warnings"] += warnings(document, scrapes, settings.validation)
    document["warnings"] += ranks_differ(document["theory"]["dp"], ledgers["counters"])
    conclude(document)
    return document
