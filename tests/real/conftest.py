"""One real vLLM for the whole session of tests/real.

Where it cannot be had at all (no CPU build of torch, no disk) the tests skip with the reason; under `CI=true` they
fail. An engine that can be had and does not start is a failure everywhere.
"""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.engine import HOST, RunningEngine, start_vllm
from tests.real.environment import NotAvailableError, cache_directory, ensure_environment
from tests.real.tiny_model import tiny_model_directory
from tests.tokenizer_kinds import qwen_tokenizer_directory

RANKS = 2
BLOCK_SIZE = 32


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
def vllm_engine(
    vllm_python: Path, qwen_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningEngine]:
    """vLLM with two ranks, block size 32 and Qwen's vocabulary; one API server process."""
    engine = start_vllm(
        tiny_model_directory(vllm_python, qwen_directory, cache_directory() / "models"),
        port=free_port(),
        ranks=RANKS,
        block_size=BLOCK_SIZE,
        served_name="tiny-qwen",
        log_path=tmp_path_factory.mktemp("vllm") / "engine.log",
        python=vllm_python,
    )
    yield engine
    engine.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
