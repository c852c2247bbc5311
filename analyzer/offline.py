"""`analyze --baseline A --after B`: an actual hit rate from two saved scrapes, without an engine."""

import shutil
from pathlib import Path
from typing import Any

from analyzer.actual import counter_actual
from analyzer.analyze import (
    Analysis,
    actual_deviation,
    actual_status,
    differences,
    metrics_part,
    read_scrape,
    service_snapshot,
)
from contract.analysis import manifest_validation, prepared_analysis
from contract.artifact_check import check_artifacts
from contract.command_log import command_log
from contract.documents import read_document, write_document
from contract.errors import ExitCode
from contract.manifest import Manifest
from contract.redaction import Redactor
from enginemetrics.difference import subtract

NO_SAMPLES: dict[str, Any] = {"by_dp": {}, "global_peak": None, "global_avg": None}
NO_RECORDS = "two scrapes hold no requests; only a run of HitLab records them"


def analyze_scrapes(manifest: Manifest, baseline: Path, after: Path) -> Analysis:
    """Analyse a pair of scrapes as a new entry under `runs/`. It never takes the place of a complete measurement."""
    with command_log(manifest.directory.log("analyze"), Redactor()) as log:
        check_artifacts(manifest)
        texts = [read_scrape(baseline), read_scrape(after)]
        document = scrapes_analysis(manifest, texts, [str(baseline), str(after)])
        directory = manifest.directory.new_measurement()
        shutil.copyfile(baseline, directory.baseline)
        shutil.copyfile(after, directory.after)
        write_document(directory.analysis, document)
        path = directory.analysis
        current = manifest.directory.analysis
        if not current.is_file() or read_document(current, "analysis").get("status") != "complete":
            write_document(current, document)
            path = current
        log.info("analysed %s and %s: %s", baseline, after, document["actual"])
    if document["actual"]["global_hit_rate"] is None:
        return Analysis(
            document, path, ExitCode.INCONCLUSIVE, "no queries were counted between the two scrapes"
        )
    return Analysis(document, path, ExitCode.DONE, None)


def scrapes_analysis(manifest: Manifest, texts: list[str], sources: list[str]) -> dict[str, Any]:
    validation = manifest_validation(manifest)
    service = manifest.effective_config["service"]
    before, after = (
        service_snapshot(text, service, source) for text, source in zip(texts, sources, strict=True)
    )
    difference = subtract(before, after)
    document = prepared_analysis(manifest.document, validation)
    document["status"] = "analyzed"
    document["runtime"] = {
        "metrics_baseline": metrics_part(texts[0], before),
        "metrics_after": metrics_part(texts[1], after),
    }
    usage = {rank.rank: rank.kv_cache_usage for rank in after.ranks}
    document["actual"] = counter_actual(difference, usage, NO_SAMPLES) | {
        "client": None,
        "client_reason": NO_RECORDS,
    }
    document |= differences(document["theoretical_hit_rate"], document["actual"]["global_hit_rate"])
    document["warnings"] += [
        *({"code": finding.code, "message": finding.message} for finding in difference.findings),
        *actual_deviation(document, validation),
    ]
    document["validation"] |= {
        "status": "PASS_WITH_WARNING" if document["warnings"] else "PASS",
        "actual_status": actual_status(document),
    }
    return document
