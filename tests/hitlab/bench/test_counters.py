"""What a bench says of counters that are another engine's, stand still, or are of an engine without prefix caching."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prompts.tokenizer import Tokenizer
from tests.balancer import POLICIES, balancer, round_robin
from tests.hitlab.bench.conftest import CONFIG, Bench, summary_of
from tests.hitlab.conftest import errors
from tests.hitlab.test_balanced_pages import CODE, STARTS, WRONG_CAUSES
from tests.misbehaving_server import METRICS, MisbehavingServer, counter, metrics, misbehaving_server

WORKLOAD = "long-doc-permutator"
Edit = Callable[[str], str]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.counting.WAIT_SECONDS", 0.3)
    monkeypatch.setattr("runner.counting.STILL_SECONDS", 0.1)


@pytest.fixture
def second(tokenizer: Tokenizer) -> Iterator[MisbehavingServer]:
    with misbehaving_server(CONFIG, tokenizer) as server:
        yield server


def codes(summary: dict[str, Any]) -> set[str]:
    return {warning["code"] for warning in summary["warnings"]}


@pytest.mark.parametrize(
    ("policy", "starts"),
    [("round robin", "the second later"), ("random", "equal"), ("sticky", "equal"), ("apart", "not told")],
)
def test_behind_a_balancer_the_answers_alone_are_believed(
    bench: Bench,
    broken: MisbehavingServer,
    second: MisbehavingServer,
    tmp_path: Path,
    policy: str,
    starts: str,
) -> None:
    broken.instead[METRICS], second.instead[METRICS] = (metrics(edit) for edit in STARTS[starts])
    with balancer([broken.url, second.url], POLICIES[policy]()) as balanced:
        ended = bench(balanced.url, WORKLOAD)
    assert ended.code == 0, ended.err
    assert f"WARNING: {CODE}: " in ended.err.partition("written")[0], "said before the load"
    assert not any(cause in ended.err for cause in WRONG_CAUSES)
    summary = summary_of(tmp_path)
    assert CODE in codes(summary)
    assert not codes(summary) & {"COUNTERS_NOT_SETTLED", "ENGINE_NOT_IDLE", "REUSE_MISSING"}
    for entry in summary["cache"]:
        assert entry["hit_tokens"] is entry["query_tokens"] is entry["predicted_least"] is None
        assert entry["unavailable"]["hit_tokens"].startswith(f"{CODE}: ")
        assert CODE in entry["unavailable"]["predicted"], "the block model knows one cache"
        assert entry["cached_tokens"] is not None
    (row,) = [line for line in ended.out.splitlines() if line.startswith("Hit tokens (engine's")][-1:]
    assert row.endswith("not measured")


def test_where_nothing_is_left_the_bench_is_inconclusive(
    bench: Bench, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    silent = CONFIG.model_copy(update={"prompt_tokens_details": False})
    with misbehaving_server(silent, tokenizer) as server, balancer([server.url], round_robin()) as balanced:
        balanced.metrics_status = 404
        ended = bench(balanced.url, WORKLOAD)
    assert ended.code == 7, ended.err
    (error,) = errors(ended)
    assert CODE in error
    assert "--enable-prompt-tokens-details" in error
    assert CODE in codes(summary_of(tmp_path))


def no_hits(text: str) -> str:
    return counter("vllm:prefix_cache_hits", lambda _: 0)(text)


def nothing(text: str) -> str:
    return counter("vllm:prefix_cache_queries", lambda _: 0)(no_hits(text))


@pytest.mark.parametrize("edit", [nothing, no_hits])
def test_counters_that_stand_still_are_no_rate_of_zero(
    bench: Bench, broken: MisbehavingServer, tmp_path: Path, edit: Edit
) -> None:
    broken.instead[METRICS] = metrics(edit)
    ended = bench(broken.url, WORKLOAD)
    assert ended.code == 0, "the answers' ledger stands"
    summary = summary_of(tmp_path)
    measured = summary["cache"][-1]
    assert measured["hit_tokens"] is None
    assert "does not report its prefix cache there" in measured["unavailable"]["hit_tokens"]
    assert measured["cached_tokens"] == measured["predicted_least"] > 0
    assert codes(summary) == {"NOT_MEASURABLE"}


def test_an_engine_without_prefix_caching_is_told_at_once(
    bench: Bench, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Its counters never move, so waiting for them would be for nothing, and would end in COUNTERS_NOT_SETTLED."""
    off = CONFIG.model_copy(update={"prefix_caching": False})
    with misbehaving_server(off, tokenizer) as server:
        ended = bench(server.url, "long-doc-qa")
    assert ended.code == 0, ended.err
    assert "WARNING: PREFIX_CACHING_OFF: " in ended.err.partition("written")[0]
    summary = summary_of(tmp_path)
    assert codes(summary) == {"PREFIX_CACHING_OFF", "REUSE_MISSING"}
    (missing,) = [item["message"] for item in summary["warnings"] if item["code"] == "REUSE_MISSING"]
    assert missing.endswith("the engine's prefix caching is off")
    measured = summary["cache"][-1]
    assert (measured["hit_tokens"], measured["cached_tokens"]) == (None, 0)
    assert "prefix caching is off" in measured["unavailable"]["hit_tokens"]
