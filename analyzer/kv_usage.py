"""Summaries of the KV-cache usage that was sampled during the load."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from contract.files import regular
from contract.run_directory import MeasurementDirectory
from contract.streams import read_stream


def kv_polling(directory: MeasurementDirectory, interval_seconds: float) -> dict[str, Any]:
    """`runtime.kv_cache_polling`: samples, peak and average per rank and over all. None where nothing was sampled."""
    rows = _rows(directory.kv_samples, directory.kv_samples_stream)
    samples: dict[float, dict[str, float | None]] = {}
    values: dict[int, list[float]] = defaultdict(list)
    waiting = [row["requests_waiting"] for row in rows if row["requests_waiting"] is not None]
    for row in rows:
        samples.setdefault(row["elapsed_seconds"], {})[str(row["dp_rank"])] = row["kv_cache_usage"]
        if row["kv_cache_usage"] is not None:
            values[row["dp_rank"]].append(row["kv_cache_usage"])
    everything = [value for part in values.values() for value in part]
    return {
        "interval_seconds": interval_seconds,
        "count": len(samples),
        "summary": {
            "count": len(samples),
            "by_dp": {
                str(rank): {"peak": max(part), "avg": sum(part) / len(part), "sample_count": len(part)}
                for rank, part in sorted(values.items())
            },
            "global_peak": max(everything, default=None),
            "global_avg": sum(everything) / len(everything) if everything else None,
            "requests_waiting_peak": max(waiting, default=None),
        },
        "samples": [{"elapsed_seconds": at, "by_dp": by_dp} for at, by_dp in samples.items()],
    }


def _rows(parquet: Path, stream: Path) -> list[dict[str, Any]]:
    if parquet.is_file():
        rows: list[dict[str, Any]] = pq.read_table(regular(parquet)).to_pylist()
        return rows
    if stream.is_file():
        return [row for batch in read_stream(stream) for row in batch.to_pylist()]
    return []
