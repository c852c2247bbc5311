"""What is known of one measurement, as numbers with labels. None, or missing: not known (yet)."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from analyzer.analysis import read_analysis
from analyzer.measurements import read_measurement
from analyzer.multimodal.requests import requests_of
from analyzer.parts import require_parts
from analyzer.performance import Performance, measure_performance
from analyzer.scrapes import load_scrape
from analyzer.watch.runs import FoundMeasurement
from analyzer.watch.verdict import verdict_of
from contract.errors import HitLabError
from contract.manifest import Manifest
from contract.measurement import Measurement

LOGGER = logging.getLogger("hitlab.watch")

LATENCIES = {"ttft_seconds": "TTFT", "tpot_seconds": "TPOT", "itl_seconds": "ITL", "e2el_seconds": "E2EL"}
"""Name of the series -> row of the performance report, whose unit is ms."""
QUANTILES = {"0.5": "median", "0.75": "p75", "0.9": "p90", "0.99": "p99"}


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Rates are 0..1, differences signed percentage points.

    Attributes:
        scenario: `run.run_id` of the scenario, the same for all its runs.
        mode: cold or warmup of texts; mm: images, which have no target, and a theory only once they are analysed.
        verdict: PASS, PASS_WITH_WARNING, failed or interrupted; None: not yet known.
        phase: the one that the run is in; None when it is over.
        baseline: rank -> (query, hit) tokens that the counters stood at before the load.
        latency: name of the series -> quantile -> seconds.
        warnings: code -> how often.
    """

    run_id: str
    measurement: str
    scenario: str
    mode: str
    status: str
    verdict: str | None
    model: str
    engine_kind: str | None
    engine_version: str | None
    started_at: str
    phase: str | None
    target: float | None = None
    theory: float | None = None
    theory_by_rank: Mapping[str, float] = field(default_factory=dict)
    target_difference_pp: float | None = None
    actual: float | None = None
    actual_by_rank: Mapping[str, float] = field(default_factory=dict)
    prediction: float | None = None
    actual_difference_pp: float | None = None
    hit_tokens: Mapping[str, int] = field(default_factory=dict)
    baseline: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    load_seconds: float | None = None
    requests: Mapping[str, int] = field(default_factory=dict)
    latency: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tokens_per_second: Mapping[str, float] = field(default_factory=dict)
    warnings: Mapping[str, int] = field(default_factory=dict)


def run_result(found: FoundMeasurement, manifest: Manifest) -> RunResult:
    """From what the run and the analysis have left so far.

    Raises ArtifactError when the measurement or the analysis cannot be read, or a file is not the measurement's.
    """
    measurement = read_measurement(found.measurement)
    going = measurement.status == "running"
    if not going:
        require_parts(found.measurement, measurement)
    known: dict[str, Any] = {
        "run_id": found.run.run_id,
        "measurement": measurement.stamp,
        "scenario": manifest.effective_config["run"]["run_id"],
        "mode": manifest.effective_config["prefix_cache"]["mode"] if manifest.mode == "text" else "mm",
        "status": measurement.status,
        "verdict": verdict_of(measurement.status, None),
        "model": measurement.service["model"],
        "engine_kind": measurement.engine.kind if measurement.engine else None,
        "engine_version": measurement.engine.version if measurement.engine else None,
        "started_at": measurement.started_at,
        "phase": measurement.phases[-1].name if going and measurement.phases else None,
        "baseline": _baseline(found, measurement),
    }
    if manifest.mode == "text":
        known |= _planned(manifest.document)
    if found.measurement.analysis.is_file():
        known |= _analysed(read_analysis(found.measurement.analysis))
    if not going and measurement.load is not None:
        known |= _performance(found, manifest, measurement)
    return RunResult(**known)


def _planned(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "target": document["prefix_cache"]["requested_target_hit_rate"],
        "theory": document["prefix_cache"]["theoretical_hit_rate"],
        "theory_by_rank": {
            str(rank): part["hit_rate"]
            for rank, part in document["theory"].get("dp", {}).items()
            if part["hit_rate"] is not None
        },
        "target_difference_pp": document["prefix_cache"]["target_signed_difference_pp"],
    }


def _baseline(found: FoundMeasurement, measurement: Measurement) -> dict[str, tuple[int, int]]:
    """Only counters of tokens: those of blocks (vLLM 0.8) are no base for token rates."""
    if not found.measurement.baseline.is_file():
        return {}
    try:
        snapshot = load_scrape(found.measurement.baseline, measurement.service).snapshot
    except HitLabError as error:
        LOGGER.warning("%s", error)
        return {}
    if snapshot is None or snapshot.unit != "tokens":
        return {}
    return {str(rank.rank): (rank.queries, rank.hits) for rank in snapshot.ranks}


def _analysed(analysis: Mapping[str, Any]) -> dict[str, Any]:
    actual = analysis["actual"]
    codes = [warning["code"] for warning in analysis["warnings"]]
    return {
        "status": analysis["status"],
        "verdict": verdict_of(analysis["status"], analysis),
        "theory": analysis["theoretical_hit_rate"],
        "actual": actual["global_hit_rate"],
        "actual_by_rank": {
            rank: part["hit_rate"] for rank, part in actual["by_dp"].items() if part["hit_rate"] is not None
        },
        "prediction": analysis["prediction"]["hit_rate"],
        "actual_difference_pp": analysis["theory_actual_signed_difference_pp"],
        "hit_tokens": {
            name: tokens for name, tokens in analysis["agreement"]["hit_tokens"].items() if tokens is not None
        },
        "warnings": {code: codes.count(code) for code in codes},
    }


def _performance(found: FoundMeasurement, manifest: Manifest, measurement: Measurement) -> dict[str, Any]:
    """Latency and throughput, where the requests were recorded."""
    load = measurement.load
    assert load is not None  # noqa: S101 - the caller looked
    try:
        requests = requests_of(manifest, found.measurement, measurement)
        measured = measure_performance(
            requests, found.measurement, streamed=load.stream, wall_seconds=load.wall_seconds
        )
    except HitLabError as error:
        LOGGER.warning("%s", error)
        return {}
    return {
        "load_seconds": load.wall_seconds,
        "requests": {
            "answered": measured.success_requests,
            "failed": measured.total_requests - measured.success_requests,
        },
        "latency": _latency(measured),
        "tokens_per_second": {
            "input": measured.input_tokens / load.wall_seconds,
            "output": measured.output_tokens / load.wall_seconds,
        }
        if load.wall_seconds > 0
        else {},
    }


def _latency(measured: Performance) -> dict[str, dict[str, float]]:
    found = {}
    for name, row in LATENCIES.items():
        summary = measured.summaries[row]
        if summary is not None:
            found[name] = {
                quantile: getattr(summary, attribute) / 1e3 for quantile, attribute in QUANTILES.items()
            }
    return found
