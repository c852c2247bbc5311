"""Scenarios for the tests with AISBench."""

from typing import Any

import pyarrow.parquet as pq

from contract.run_directory import MeasurementDirectory


def service(url: str, model: str, **fields: Any) -> dict[str, Any]:
    return {
        "inference_url": f"{url}/v1/completions",
        "metrics_url": f"{url}/metrics",
        "reset_url": f"{url}/reset_prefix_cache",
        "model": model,
        "dp_size": 2,
        "timeout_seconds": 120,
        "poll_interval_seconds": 0.5,
        **fields,
    }


def simulated(url: str, **sections: Any) -> dict[str, Any]:
    """A small scenario for a simulator with blocks of 16, in cold mode with six lanes."""
    document: dict[str, Any] = {
        "run": {"run_id": "job", "output_dir": "./outputs/job"},
        "tokenizer": {"path": "builtin:demo", "block_size": 16},
        "corpus": {"path": "builtin:word-problems"},
        "requests": {
            "count": 40,
            "input_length": {"mode": "truncated_normal", "min": 64, "max": 400},
            "output_length": {"mode": "uniform", "min": 1, "max": 6},
        },
        "prefix_cache": {"mode": "cold", "target_hit_rate": 0.5, "groups": {"count": 3}},
        "service": service(url, "demo"),
        "aisbench": {"model": {"batch_size": 4}},
    }
    return {**document, **sections}


def records(measured: MeasurementDirectory) -> list[dict[str, Any]]:
    """The attempts of a measurement, in the order in which they started."""
    rows: list[dict[str, Any]] = pq.read_table(measured.requests).to_pylist()
    return sorted(rows, key=lambda row: row["started_ns"])


def assert_lanes_kept(rows: list[dict[str, Any]]) -> None:
    """In every lane one request after the other, in its order."""
    ends: dict[tuple[str, int], tuple[int, int]] = {}
    for row in rows:
        lane = (row["group"], row["dp_rank"])
        sequence, end = ends.get(lane, (-1, 0))
        assert row["lane_sequence"] > sequence, row
        assert row["started_ns"] >= end, row
        ends[lane] = (row["lane_sequence"], row["started_ns"] + int(row["e2el_s"] * 1e9))
