"""Benches as a user starts them, against simulated engines with one rank."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prompts.tokenizer import Tokenizer, load_tokenizer
from prompts.words import WordList, find_words
from simulator.config import SimulatorConfig
from simulator.process import start_simulator
from tests.hitlab.conftest import BLOCK_SIZE, Ended, Hitlab
from tests.misbehaving_server import MisbehavingServer, misbehaving_server

CHAT = "/v1/chat/completions"
# Tokens come 2 ms apart: without any time between them an answer may arrive in one read, and has no decode speed.
CONFIG = SimulatorConfig(
    block_size=BLOCK_SIZE, ranks=1, max_model_len=8192, blocks_per_rank=4096, decode_tokens_per_second=500
)
# Small enough for a test, large enough that every workload has something to reuse.
WORKLOADS: dict[str, list[str]] = {
    "long-doc-qa": [
        *("--kv-cache-volume", "0.5", "--ldqa-document-length", "700", "--ldqa-max-output-length", "4"),
        *("--tokens-per-gb-kvcache", "6000"),
    ],
    "multi-round-chat": [
        *("--kv-cache-volume", "0.4", "--tokens-per-gb-kvcache", "6000", "--mrc-shared-prompt-length", "300"),
        *("--mrc-chat-history-length", "500", "--mrc-output-length", "12", "--mrc-qps", "10", "--mrc-duration", "1"),
    ],
    "long-doc-permutator": [
        *("--ldp-num-contexts", "4", "--ldp-context-length", "200", "--ldp-system-prompt-length", "100"),
        *("--ldp-max-output-length", "3",),
    ],
    "prefix-suffix-tuner": ["--psf-context-length", "800", "--psf-thrash", "0.3166", "--tokens-per-gb-kvcache", "6000"],
    "random-prefill": ["--rp-request-length", "300", "--rp-num-requests", "10"],
    "kv-tier-pressure": [
        *("--ktp-pool-size", "8", "--ktp-docs-per-request", "2", "--ktp-context-length", "150"),
        *("--ktp-num-requests", "12", "--ktp-num-inflight-requests", "1"),
    ],
}  # fmt: skip

Bench = Callable[..., Ended]


@pytest.fixture(scope="session")
def engine() -> Iterator[str]:
    with start_simulator(CONFIG) as simulator:
        yield simulator.url


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer("builtin:demo")


@pytest.fixture
def broken(tokenizer: Tokenizer) -> Iterator[MisbehavingServer]:
    """An engine that can be told to misbehave."""
    with misbehaving_server(CONFIG, tokenizer) as server:
        yield server


@pytest.fixture(scope="session")
def words(tokenizer: Tokenizer) -> WordList:
    return find_words(tokenizer)


@pytest.fixture
def bench(hitlab: Hitlab, words: WordList, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Runs `hitlab bench engine` in an empty folder, without what takes long: finding words, charts, the tuner's pause.

    Tests that start a process of their own do without these short cuts.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("prompts.words.find_words", lambda _: words)
    monkeypatch.setattr("analyzer.bench.page.drawn", lambda _: [])
    monkeypatch.setattr("runner.workloads.prefix_suffix_tuner.PAUSE_SECONDS", 0.05)

    def run(url: str, workload: str, *more: str, json_summary: bool = True) -> Ended:
        arguments = ["--engine-url", url, "--workload", workload, *WORKLOADS.get(workload, []), *more]
        return hitlab("bench", "engine", *arguments, *(["--json"] if json_summary else []))

    return run


def summary_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "bench_summary.json").read_text())
    return found
