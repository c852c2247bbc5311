"""The KV-cache usage that was sampled during the load. No hit rate needs it: damaged, it is null with a reason."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from analyzer.parts import part_problem
from analyzer.request_table import Attempts
from contract.errors import ArtifactError
from contract.measurement import Measurement
from contract.run_directory import MeasurementDirectory
from contract.streams import KV_SAMPLE_SCHEMA, read_parquet, read_stream


@dataclass(frozen=True)
class KvSamples:
    """The samples with `KV_SAMPLE_SCHEMA`, one row per time and rank. `damaged`: why there are none to be had."""

    table: pa.Table
    damaged: str | None = None


def kv_samples(directory: MeasurementDirectory, measurement: Measurement) -> KvSamples:
    """What was sampled; without rows where nothing was, or where the file is not the one that the run wrote."""
    nothing = KV_SAMPLE_SCHEMA.empty_table()
    path = directory.kv_samples
    if not path.is_file() and directory.kv_samples_stream.is_file():
        path = directory.kv_samples_stream
    problem = part_problem(measurement, path)
    if problem is not None:
        return KvSamples(nothing, f"{path.name} {problem}")
    if not path.is_file():
        return KvSamples(nothing)
    try:
        batches = read_stream(path) if path == directory.kv_samples_stream else read_parquet(path)
        return KvSamples(pa.Table.from_batches(batches, schema=KV_SAMPLE_SCHEMA))
    except (ArtifactError, pa.ArrowException) as error:
        return KvSamples(nothing, f"{path.name}: {error}")


@dataclass(frozen=True)
class LoadWindow:
    """From the first request sent to the last one finished, in seconds since the formal phase began."""

    first_sent: float
    last_finished: float

    def holds(self, elapsed_seconds: float) -> bool:
        return self.first_sent <= elapsed_seconds <= self.last_finished


def load_window(measurement: Measurement, attempts: Attempts) -> LoadWindow | None:
    """When requests were under way; a driver's own start and end, AISBench's imports say, are not in it.

    An attempt whose end is not known counts as far as its start. None: nothing was sent.
    """
    formal = next((phase for phase in measurement.phases if phase.name == "formal"), None)
    if formal is None or not attempts.count:
        return None
    began = datetime.fromisoformat(formal.started_at).timestamp()
    ends = attempts.wall_start + np.nan_to_num(attempts.e2el_s)
    return LoadWindow(float(attempts.wall_start.min()) - began, float(ends.max()) - began)


def kv_polling(samples: KvSamples, interval_seconds: float, window: LoadWindow | None) -> dict[str, Any]:
    """`runtime.kv_cache_polling`: every sample, and of those inside the load the peak and average per rank and over all.

    `load_seconds`: that window, on the clock of `elapsed_seconds`. `summary.reason`: why there is no peak and average.
    """
    rows = samples.table.to_pylist()
    shown: dict[float, dict[str, float | None]] = {}
    for row in rows:
        shown.setdefault(row["elapsed_seconds"], {})[str(row["dp_rank"])] = row["kv_cache_usage"]
    inside = [row for row in rows if window is not None and window.holds(row["elapsed_seconds"])]
    summary = _usage_summary(inside)
    if samples.damaged:
        summary["count"] = None
    if summary["global_peak"] is None:
        summary["reason"] = samples.damaged or _no_usage(len(shown), len(inside), interval_seconds, window)
    return {
        "interval_seconds": interval_seconds,
        "count": None if samples.damaged else len(shown),
        "reason": samples.damaged,
        "load_seconds": None if window is None else [window.first_sent, window.last_finished],
        "summary": summary,
        "samples": [{"elapsed_seconds": at, "by_dp": by_dp} for at, by_dp in shown.items()],
    }


def _usage_summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    values: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row["kv_cache_usage"] is not None:
            values[row["dp_rank"]].append(row["kv_cache_usage"])
    everything = [value for part in values.values() for value in part]
    waiting = [row["requests_waiting"] for row in rows if row["requests_waiting"] is not None]
    return {
        "count": len({row["elapsed_seconds"] for row in rows}),
        "by_dp": {
            str(rank): {"peak": max(part), "avg": sum(part) / len(part), "sample_count": len(part)}
            for rank, part in sorted(values.items())
        },
        "global_peak": max(everything, default=None),
        "global_avg": sum(everything) / len(everything) if everything else None,
        "requests_waiting_peak": max(waiting, default=None),
        "reason": None,
    }


def _no_usage(sampled: int, inside: int, interval_seconds: float, window: LoadWindow | None) -> str:
    """Why no usage is known although no file is damaged."""
    if interval_seconds == 0:
        return "service.poll_interval_seconds is 0, so nothing was sampled"
    if window is None:
        return "no record says when a request was under way"
    if inside:
        return "the engine's metrics page shows no KV-cache usage"
    duration = window.last_finished - window.first_sent
    if not sampled:
        return (
            f"the load of {duration:.3g} s was over before the first sample (service.poll_interval_seconds is "
            f"{interval_seconds:g})"
        )
    return (
        f"none of {sampled} samples fell into the load of {duration:.3g} s (service.poll_interval_seconds is "
        f"{interval_seconds:g})"
    )


def damaged_samples(polling: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The warning that these figures are missing, where they are."""
    if polling["reason"] is None:
        return []
    message = f"KV usage and waiting requests during the load are not known: {polling['reason']}"
    return [{"code": "SAMPLES_DAMAGED", "message": message}]
