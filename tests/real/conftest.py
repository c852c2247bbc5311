"""Real vLLMs for tests/real, one at a time.

Three engines are started in a session, one after the other, because two of them at once are too much for two cores:

* `vllm_engine`: one API server process for two ranks, a pool that holds everything;
* `bench_engine`: one rank, a pool of 400 blocks;
* `served_engine`: `vllm serve`, two API server processes for two ranks, a pool of 300 blocks a rank.

Whoever asks for one ends the one before, so the tests of each are put behind one another; and behind those the
test that kills the last. Pytest keeps the order within each of these parts.

Where a real engine cannot be had at all (no CPU build of torch, no disk) the tests skip with the reason; under
`CI=true` they fail. An engine that can be had and does not start is a failure everywhere.
"""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.engine import HOST, RunningEngine, start_vllm
from tests.real.environment import NotAvailableError, cache_directory, ensure_environment
from tests.real.tiny_model import tiny_model_directory
from tests.tokenizer_kinds import qwen_tokenizer_directory

RANKS = 2
BLOCK_SIZE = 32
SMALL_POOL_BLOCKS = 300
SMALL_MAX_MODEL_LEN = 4096
BENCH_POOL_BLOCKS = 400

StartEngine = Callable[..., RunningEngine]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "last: ends the engine it uses; runs after every other test")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One engine after the other; what ends the last of them comes last."""
    engines = ("vllm_engine", "bench_engine", "served_engine")

    def part(item: pytest.Item) -> int:
        if item.get_closest_marker("last"):
            return len(engines)
        wanted = getattr(item, "fixturenames", ())
        return next((place for place, engine in enumerate(engines) if engine in wanted), 0)

    items.sort(key=part)


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The python of an environment that has vLLM."""
    try:
        return ensure_environment()
    except NotAvailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no real vLLM: {error}", pytrace=False)
        pytest.skip(f"no real vLLM: {error}")


@pytest.fixture(scope="session")
def qwen_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen's real tokenizer."""
    return qwen_tokenizer_directory(tmp_path_factory.mktemp("qwen-tokenizer"))


@pytest.fixture(scope="session")
def start_engine(
    vllm_python: Path, qwen_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartEngine]:
    """Starts an engine (two ranks unless asked otherwise, blocks of 32, Qwen's vocabulary); ends the one before."""
    running: list[RunningEngine] = []

    def start(**options: Any) -> RunningEngine:
        while running:
            running.pop().stop()
        engine = start_vllm(
            tiny_model_directory(vllm_python, qwen_directory, cache_directory() / "models"),
            port=free_port(),
            block_size=BLOCK_SIZE,
            served_name="tiny-qwen",
            log_path=tmp_path_factory.mktemp("vllm") / "engine.log",
            python=vllm_python,
            **{"ranks": RANKS, **options},
        )
        running.append(engine)
        return engine

    yield start
    while running:
        running.pop().stop()


@pytest.fixture(scope="session")
def vllm_engine(start_engine: StartEngine) -> RunningEngine:
    """One API server process; a pool that holds everything."""
    return start_engine()


@pytest.fixture(scope="session")
def bench_engine(start_engine: StartEngine) -> RunningEngine:
    """One rank, so that the way of every request is known in advance; a pool that a bench can overflow."""
    return start_engine(
        ranks=1,
        max_model_len=SMALL_MAX_MODEL_LEN,
        extra_args=["--num-gpu-blocks-override", str(BENCH_POOL_BLOCKS)],
    )


@pytest.fixture(scope="session")
def served_engine(start_engine: StartEngine) -> RunningEngine:
    """Two API server processes, started as users do; a pool that is soon full."""
    return start_engine(
        topology="serve",
        max_model_len=SMALL_MAX_MODEL_LEN,
        extra_args=["--num-gpu-blocks-override", str(SMALL_POOL_BLOCKS)],
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
