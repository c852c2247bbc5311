"""Results as Prometheus metrics: what the dashboards' history shows, and what they compare a live run with."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from analyzer.watch.results import RunResult

RUN = ("run_id", "measurement", "scenario")
"""Labels of every series of a run; run_id and measurement are also those of the engine's series (contract.file_sd)."""

Series = Iterator[tuple[Sequence[str], float]]


def metrics_text(results: Sequence[RunResult], service: Mapping[str, tuple[str, float]]) -> bytes:
    """The exposition of these runs.

    Args:
        service: name -> (help, value) of gauges about the service itself.
    """
    registry = CollectorRegistry()
    registry.register(_Results(results, service))
    return generate_latest(registry)


class _Results(Collector):
    def __init__(self, results: Sequence[RunResult], service: Mapping[str, tuple[str, float]]) -> None:
        self._results = results
        self._service = service

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for name, (text, value) in self._service.items():
            yield GaugeMetricFamily(name, text, value=value)
        for name, text, labels, series in _FAMILIES:
            family = GaugeMetricFamily(f"hitlab_run_{name}", text, labels=(*RUN, *labels))
            for result in self._results:
                for values, number in series(result):
                    family.add_metric(
                        (result.run_id, result.measurement, result.scenario, *values), float(number)
                    )
            yield family


def _one(read: Callable[[RunResult], float | None]) -> Callable[[RunResult], Series]:
    """A series per run, where the value is known."""

    def series(result: RunResult) -> Series:
        value = read(result)
        if value is not None:
            yield (), value

    return series


def _several(read: Callable[[RunResult], Mapping[str, float]]) -> Callable[[RunResult], Series]:
    """A series per entry of a mapping; its key is the label."""

    def series(result: RunResult) -> Series:
        for label, value in read(result).items():
            yield (label,), value

    return series


def _info(result: RunResult) -> Series:
    texts = (
        result.mode,
        result.model,
        result.engine_kind,
        result.engine_version,
        result.status,
        result.verdict,
    )
    yield tuple(text or "unknown" for text in texts), 1


def _started(result: RunResult) -> float:
    return datetime.fromisoformat(result.started_at).timestamp()


_RANK = ("rank",)
_QUANTILE = ("quantile",)
_FAMILIES: tuple[tuple[str, str, Sequence[str], Callable[[RunResult], Series]], ...] = (
    (
        "info",
        "A measurement and how it ended; 1.",
        ("mode", "model", "engine_kind", "engine_version", "status", "verdict"),
        _info,
    ),
    ("start_time_seconds", "When the run began.", (), _one(_started)),
    (
        "phase",
        "1 for the phase that the run is in; no series when it is over.",
        ("phase",),
        lambda result: iter([((result.phase,), 1.0)] if result.phase else []),
    ),
    ("target_hit_rate", "The hit rate that was asked for, 0..1.", (), _one(lambda result: result.target)),
    (
        "theoretical_hit_rate",
        "The hit rate that the data was built for, 0..1.",
        (),
        _one(lambda result: result.theory),
    ),
    (
        "rank_theoretical_hit_rate",
        "The same for each rank, where the plan chooses the rank of each request.",
        _RANK,
        _several(lambda result: result.theory_by_rank),
    ),
    (
        "actual_hit_rate",
        "What the engine's counters say about the load, 0..1.",
        (),
        _one(lambda result: result.actual),
    ),
    (
        "rank_actual_hit_rate",
        "The same for each rank.",
        _RANK,
        _several(lambda result: result.actual_by_rank),
    ),
    (
        "predicted_hit_rate",
        "The hit rate that the block-exact model of the engine gives, 0..1.",
        (),
        _one(lambda result: result.prediction),
    ),
    (
        "theory_target_difference_percentage_points",
        "Theory minus target.",
        (),
        _one(lambda result: result.target_difference_pp),
    ),
    (
        "actual_theory_difference_percentage_points",
        "Actual minus theory.",
        (),
        _one(lambda result: result.actual_difference_pp),
    ),
    (
        "hit_tokens",
        "Tokens that hit, by who says so.",
        ("ledger",),
        _several(lambda result: result.hit_tokens),
    ),
    (
        "baseline_query_tokens",
        "Where vllm:prefix_cache_queries_total stood before the load.",
        _RANK,
        _several(lambda result: {rank: queries for rank, (queries, _) in result.baseline.items()}),
    ),
    (
        "baseline_hit_tokens",
        "Where vllm:prefix_cache_hits_total stood before the load.",
        _RANK,
        _several(lambda result: {rank: hits for rank, (_, hits) in result.baseline.items()}),
    ),
    ("load_seconds", "How long the formal load took.", (), _one(lambda result: result.load_seconds)),
    (
        "requests",
        "Requests of the load by how they ended.",
        ("outcome",),
        _several(lambda result: result.requests),
    ),
    *(
        (
            name,
            f"{text}, as the client measured it.",
            _QUANTILE,
            _several(lambda result, name=name: result.latency.get(name, {})),  # type: ignore[misc]
        )
        for name, text in (
            ("ttft_seconds", "Time to first token"),
            ("tpot_seconds", "Time per output token"),
            ("itl_seconds", "Gap between chunks"),
            ("e2el_seconds", "Time from start to the last byte"),
        )
    ),
    (
        "tokens_per_second",
        "Tokens of answered requests over the time of the load.",
        ("direction",),
        _several(lambda result: result.tokens_per_second),
    ),
    (
        "warnings",
        "How many warnings the analysis has.",
        (),
        _one(lambda result: sum(result.warnings.values()) if result.verdict is not None else None),
    ),
    (
        "warning",
        "How often the analysis has this warning.",
        ("code",),
        _several(lambda result: result.warnings),
    ),
)


def service_gauges(**values: Any) -> dict[str, tuple[str, float]]:
    """Gauges about the service; those whose value is None are left out."""
    texts = {
        "measurements": "Measurements under the artifacts.",
        "annotations_behind": "Measurements whose annotations are not yet all in Grafana.",
        "grafana_up": "Whether Grafana took what was last sent to it.",
        "analyses_failed": "Measurements that could not be analysed.",
        "last_pass_time_seconds": "When all runs were last looked at.",
    }
    return {
        f"hitlab_watch_{name}": (texts[name], float(value))
        for name, value in values.items()
        if value is not None
    }
