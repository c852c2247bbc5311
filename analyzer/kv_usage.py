"""The KV-cache usage that was sampled during the load. No hit rate needs it: damaged, it is null with a reason."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from analyzer.parts import part_problem
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


def kv_polling(samples: KvSamples, interval_seconds: float) -> dict[str, Any]:
    """`runtime.kv_cache_polling`: samples, peak and average per rank and over all. None where nothing was sampled."""
    rows = samples.table.to_pylist()
    shown: dict[float, dict[str, float | None]] = {}
    values: dict[int, list[float]] = defaultdict(list)
    waiting = [row["requests_waiting"] for row in rows if row["requests_waiting"] is not None]
    for row in rows:
        shown.setdefault(row["elapsed_seconds"], {})[str(row["dp_rank"])] = row["kv_cache_usage"]
        if row["kv_cache_usage"] is not None:
            values[row["dp_rank"]].append(row["kv_cache_usage"])
    everything = [value for part in values.values() for value in part]
    count = None if samples.damaged else len(shown)
    return {
        "interval_seconds": interval_seconds,
        "count": count,
        "reason": samples.damaged,
        "summary": {
            "count": count,
            "by_dp": {
                str(rank): {"peak": max(part), "avg": sum(part) / len(part), "sample_count": len(part)}
                for rank, part in sorted(values.items())
            },
            "global_peak": max(everything, default=None),
            "global_avg": sum(everything) / len(everything) if everything else None,
            "requests_waiting_peak": max(waiting, default=None),
        },
        "samples": [{"elapsed_seconds": at, "by_dp": by_dp} for at, by_dp in shown.items()],
    }


def damaged_samples(polling: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The warning that these figures are missing, where they are."""
    if polling["reason"] is None:
        return []
    message = f"KV usage and waiting requests during the load are not known: {polling['reason']}"
    return [{"code": "SAMPLES_DAMAGED", "message": message}]
