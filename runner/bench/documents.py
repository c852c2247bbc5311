"""The documents of a bench's run directory: its manifest, its measurement, the records of its phases."""

import os
import platform
from importlib.metadata import version
from typing import Any

from contract.bench import BenchMeasurement, BenchPhase
from contract.events import utc_now
from contract.kinds import BENCH
from contract.manifest import Manifest
from contract.measurement import EngineRecord, LoadRecord
from contract.records import RequestRecord
from contract.redaction import Redactor
from contract.run_directory import MeasurementDirectory
from runner.bench.fingerprint import fingerprint, fingerprint_parts
from runner.bench.prepare import PreparedBench
from runner.bench.stage import SentStage
from runner.drivers.native.load import LoadSummary
from runner.workloads.plan import FixedRate, InFlight, Phase


def bench_manifest(prepared: PreparedBench, run_id: str) -> dict[str, Any]:
    general = prepared.settings.general
    parts = fingerprint_parts(prepared)
    return {
        "schema_version": "1.0",
        "kind": BENCH,
        "status": "prepared",
        "run_id": run_id,
        "workload": prepared.settings.workload.name,
        "created_at": utc_now(),
        "settings": prepared.exported,
        "engine_url": prepared.engine.url,
        "lmcache_url": general.lmcache_url,
        "size_source": prepared.size.source,
        "tokenizer": prepared.tokenizer,
        "facts": dict(prepared.plan.facts),
        "fact_order": list(prepared.plan.facts),  # documents are stored with sorted keys
        "phases": [
            {"name": phase.name, "measured": phase.measured, "requests": len(phase.requests)}
            for phase in prepared.plan.phases
        ],
        "skipped_phases": list(prepared.skipped),
        "fingerprint": fingerprint(parts),
        "fingerprint_parts": parts,
        "invocation": {
            "output_dir": str(general.output_dir),
            "export_csv": not general.no_csv,
            "export_json": general.json_summary,
            "quiet": general.quiet,
        },
        "versions": {
            "hitlab": version("hitlab"),
            "python": platform.python_version(),
            "engine": prepared.engine.version,
        },
        "host": {"name": platform.node(), "system": platform.platform(), "cpus": os.cpu_count()},
        "effective_config": {"run": {"run_id": f"bench-{prepared.settings.workload.name}"}},
    }


def redacted_manifest(document: dict[str, Any], redact: Redactor) -> dict[str, Any]:
    """Without secrets, also where a key is a word that the document has anyway."""
    words = ("kind", "status", "workload", "phases", "skipped_phases")
    return {**redact.own(document), **{name: document[name] for name in words}}


def first_measurement(
    prepared: PreparedBench, manifest: Manifest, directory: MeasurementDirectory
) -> BenchMeasurement:
    engine, found = prepared.engine.client.engine, prepared.engine
    configs = [] if found.scrape is None else [rank.cache_config for rank in found.scrape.snapshot.ranks]
    return BenchMeasurement(
        status="running",
        run_id=manifest.document["run_id"],
        stamp=directory.stamp,
        manifest_sha256=manifest.sha256,
        started_at=utc_now(),
        service={
            "inference_url": engine.inference_url,
            "metrics_url": engine.metrics_urls[0],
            "metrics_urls": list(engine.metrics_urls),
            "reset_url": engine.reset_url,
            "model": engine.model,
            "dp_size": engine.ranks,
            "engine_label_map": {},
        },
        validation={},
        engine=EngineRecord(
            kind=engine.kind,
            inference_url=engine.inference_url,
            metrics_urls=list(engine.metrics_urls),
            reset_url=engine.reset_url,
            model=engine.model,
            version=found.version,
            max_model_len=found.max_model_len,
            block_size=found.cache.block_size if found.cache else None,
            num_gpu_blocks=[config.num_gpu_blocks if config else None for config in configs],
        ),
    )


def phase_record(
    phase: Phase, stage: SentStage, summary: LoadSummary, records: list[RequestRecord]
) -> BenchPhase:
    rate = phase.pace if isinstance(phase.pace, FixedRate) else None
    limit = phase.pace.limit if isinstance(phase.pace, InFlight) else len(phase.requests)
    return BenchPhase(
        name=phase.name,
        stage=stage.name,
        planned=len(phase.requests),
        started=summary.started,
        answered=summary.finished,
        failed=summary.failed,
        aborted=summary.aborted,
        withdrawn=len(phase.requests) - summary.started,
        seconds=summary.wall_seconds,
        requested_concurrency=limit if rate is None else None,
        mean_in_flight=summary.mean_in_flight,
        max_in_flight=summary.max_in_flight,
        requested_rate=None if rate is None else rate.per_second,
        reached_rate=None if rate is None else _reached_rate(rate, records),
        mean_lag_seconds=summary.mean_lag_seconds,
        max_lag_seconds=summary.max_lag_seconds,
        reopened_connections=summary.reopened_connections,
    )


def _reached_rate(rate: FixedRate, records: list[RequestRecord]) -> float | None:
    """Starts over the time that they took, or should have taken where that is longer; the first start begins it."""
    if not records:
        return None
    starts = [record.started_ns / 1e9 for record in records]
    span = max(
        max(starts) - min(starts) + 1 / rate.per_second, min(rate.seconds, len(records) / rate.per_second)
    )
    return len(records) / span


def load_record(summary: LoadSummary, concurrency: int, timeout_seconds: float) -> LoadRecord:
    return LoadRecord(
        driver="native",
        concurrency=concurrency,
        stream=True,
        retries=0,
        timeout_seconds=timeout_seconds,
        started=summary.started,
        finished=summary.finished,
        failed=summary.failed,
        aborted=summary.aborted,
        retried=summary.retried,
        wall_seconds=summary.wall_seconds,
        mean_in_flight=summary.mean_in_flight,
        max_in_flight=summary.max_in_flight,
        lane_wait_seconds=summary.lane_wait_seconds,
        mean_while_waiting=summary.mean_while_waiting,
    )
