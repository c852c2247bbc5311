"""On a real vLLM with two ranks: theory, counters and cached tokens are equal, to the token, whoever sends."""

import statistics
from pathlib import Path
from typing import Any

import pytest

from contract.rows import read_rows
from tests.aisbench.conftest import MakeJob
from tests.aisbench.scenarios import assert_lanes_kept, records, service
from tests.real.engine import RunningEngine
from tests.real.job import assert_equal_to_the_token


def document(engine: RunningEngine, tokenizer: Path, **sections: Any) -> dict[str, Any]:
    return {
        "run": {"run_id": "real", "output_dir": "./outputs/real"},
        "tokenizer": {"path": str(tokenizer), "block_size": engine.block_size},
        "corpus": {"path": "builtin:word-problems"},
        "requests": {
            "count": 60,
            "input_length": {"mode": "truncated_normal", "min": 200, "max": 900},
            "output_length": {"mode": "uniform", "min": 1, "max": 8},
        },
        "prefix_cache": {"mode": "cold", "target_hit_rate": 0.4, "groups": {"count": 3}},
        "service": service(engine.url, engine.model),
        **sections,
    }


def test_warmup(vllm_engine: RunningEngine, qwen_directory: Path, make_job: MakeJob) -> None:
    job = make_job(
        document(
            vllm_engine,
            qwen_directory,
            prefix_cache={"mode": "warmup", "target_hit_rate": 0.6, "groups": {"count": 3}},
            aisbench={"model": {"batch_size": 8}},
        )
    )
    run = job.run()
    assert run.code == 0, run.err
    assert_equal_to_the_token(run.analysis, run.directory)
    load = run.measurement["load"]
    assert load["driver"] == "aisbench"
    assert load["max_in_flight"] == 8
    assert {row["dp_rank"] for row in records(run.measured)} == {None}


@pytest.mark.parametrize(("batch_size", "groups", "count"), [(1, 3, 30), (64, 40, 200), (600, 100, 300)])
def test_cold(
    vllm_engine: RunningEngine,
    qwen_directory: Path,
    make_job: MakeJob,
    batch_size: int,
    groups: int,
    count: int,
) -> None:
    """600 is divided among worker processes, which share the lanes."""
    job = make_job(
        document(
            vllm_engine,
            qwen_directory,
            requests={
                "count": count,
                "input_length": {"mode": "truncated_normal", "min": 128, "max": 400},
                "output_length": {"mode": "uniform", "min": 1, "max": 4},
            },
            prefix_cache={"mode": "cold", "target_hit_rate": 0.2, "groups": {"count": groups}},
            aisbench={"model": {"batch_size": batch_size}},
        )
    )
    run = job.run()
    assert run.code == 0, run.err
    assert_equal_to_the_token(run.analysis, run.directory)
    rows = records(run.measured)
    assert_lanes_kept(rows)
    if batch_size == 1:
        assert [row["position"] for row in rows] == list(range(count))
    else:
        assert 8 < run.measurement["load"]["max_in_flight"] <= batch_size


RUNS = 3


@pytest.mark.alone
def test_both_drivers_measure_the_same(
    vllm_engine: RunningEngine, qwen_directory: Path, make_job: MakeJob
) -> None:
    """Three runs of each, alternating, on the same data: equal tokens per request, and the same TTFT."""
    job = make_job(
        document(
            vllm_engine,
            qwen_directory,
            requests={
                "count": 40,
                "input_length": {"mode": "fixed", "value": 512},
                "output_length": {"mode": "fixed", "value": 4},
            },
            aisbench={"model": {"batch_size": 1}},
        )
    )
    planned = {row["sequence_index"]: row["theoretical_hit_tokens"] for row in read_rows(job.directory.full)}
    medians: dict[str, list[float]] = {"native": [], "aisbench": []}
    tokens = set()
    for _ in range(RUNS):
        for driver, seen in medians.items():
            run = job.run("--driver", driver)
            assert run.code == 0, run.err
            assert run.measurement["load"]["driver"] == driver
            rows = records(run.measured)
            seen.append(statistics.median(row["ttft_s"] for row in rows))
            assert {row["position"]: row["cached_tokens"] for row in rows} == planned
            tokens.add(tuple((row["position"], row["prompt_tokens"], row["cached_tokens"]) for row in rows))
    assert len(tokens) == 1
    native, aisbench = (statistics.median(medians[driver]) for driver in ("native", "aisbench"))
    print(f"median TTFT: native {native * 1e3:.2f} ms, AISBench {aisbench * 1e3:.2f} ms; {medians}")
    assert abs(aisbench - native) <= max(0.1 * native, 0.005)
