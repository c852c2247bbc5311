"""The main job on a real vLLM with two ranks: theory, counters and cached tokens are equal, to the token."""

from pathlib import Path

import pytest

from contract.run_directory import RunDirectory
from tests.real.engine import RunningEngine
from tests.real.job import MIXED, assert_equal_to_the_token, prepare, run, scenario


@pytest.fixture(scope="session")
def warm(
    vllm_engine: RunningEngine, qwen_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, RunDirectory]:
    path = scenario(
        vllm_engine,
        qwen_directory,
        tmp_path_factory.mktemp("warm"),
        requests={
            "count": 60,
            "input_length": MIXED,
            "output_length": {"mode": "uniform", "min": 1, "max": 16},
        },
        prefix_cache={"mode": "warmup", "target_hit_rate": 0.6, "groups": {"count": 3}},
    )
    return path, prepare(path)


@pytest.mark.parametrize("time", ["first", "again, after a reset"])
def test_warmup_60_percent(warm: tuple[Path, RunDirectory], time: str) -> None:
    path, directory = warm
    analysis = run(path, directory)
    assert_equal_to_the_token(analysis, directory)
    assert abs(analysis["actual"]["global_hit_rate"] - 0.6) < 0.001
    assert len(analysis["runtime"]["warmup"]) == 6
    by_rank = analysis["actual"]["by_dp"].values()
    assert all(rank["queries"] > 0 for rank in by_rank), "the server balances over both ranks"
    assert analysis["runtime"]["load"]["max_in_flight"] == 8


def test_cold_50_percent(vllm_engine: RunningEngine, qwen_directory: Path, tmp_path: Path) -> None:
    path = scenario(
        vllm_engine,
        qwen_directory,
        tmp_path,
        requests={"count": 40, "input_length": MIXED, "output_length": {"mode": "fixed", "value": 8}},
        prefix_cache={
            "mode": "cold",
            "target_hit_rate": 0.5,
            "groups": {"count": 2, "assignment": {"mode": "zipf"}},
            "order": {"strategy": "input_len_asc"},
        },
        driver={"kind": "native", "concurrency": 4},  # 2 ranks x 2 groups are 4 lanes
    )
    directory = prepare(path)
    analysis = run(path, directory)
    assert_equal_to_the_token(analysis, directory)
    assert abs(analysis["actual"]["global_hit_rate"] - 0.5) < 0.001
    assert set(analysis["theory"]["dp"]) == {"0", "1"}
    assert analysis["runtime"]["warmup"] == []
