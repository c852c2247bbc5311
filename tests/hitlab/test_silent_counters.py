"""Counters that never move beside answers that tell cached_tokens (vllm-ascend#15744, #16639): measured, no rate of 0."""

from collections.abc import Callable

import pytest

from contract.run_directory import MeasurementDirectory
from tests.hitlab.conftest import REQUESTS, Hitlab, Job, document, errors
from tests.misbehaving_server import METRICS, MisbehavingServer, counter, metrics

QUERIES, HITS = "vllm:prefix_cache_queries", "vllm:prefix_cache_hits"


def no_hits(text: str) -> str:
    return counter(HITS, lambda _: 0)(text)


def nothing(text: str) -> str:
    return counter(QUERIES, lambda _: 0)(no_hits(text))


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.counting.STILL_SECONDS", 0.1)


@pytest.mark.parametrize("mode", ["cold", "warmup"])
@pytest.mark.parametrize(("edit", "said"), [(nothing, "they show 0 queries"), (no_hits, "they show 0 hits")])
def test_a_run_keeps_the_rate_of_the_answers_and_gives_none_of_the_counters(
    hitlab: Hitlab, server: MisbehavingServer, job: Job, mode: str, edit: Callable[[str], str], said: str
) -> None:
    server.instead[METRICS] = metrics(edit)
    directory = job(mode)
    ended = hitlab("run", "--scenario", directory.root.parent / "scenario.json")
    assert ended.code == 7, ended.err
    (error,) = errors(ended)
    assert said in error
    measurement = MeasurementDirectory(max(directory.runs.iterdir()))
    told = document(measurement.measurement)
    assert told["status"] == "complete"
    assert told["load"]["finished"] == REQUESTS
    analysis = document(measurement.analysis)
    actual, theory = analysis["actual"], analysis["theory"]
    assert actual["global_hit_rate"] is None
    assert all(rank["hit_rate"] is None for rank in actual["by_dp"].values())
    assert said in actual["reason"]
    assert actual["client"]["cached_tokens"] == theory["hit_tokens"], "the answers' own rate stands beside it"
    row = next(line for line in ended.out.splitlines() if "Overall Actual Hit Rate" in line)
    assert "N/A" in row
    codes = {warning["code"] for warning in analysis["warnings"]}
    assert "NOT_MEASURABLE" in codes
    assert not codes & {"FOREIGN_TRAFFIC", "COUNTERS_NOT_SETTLED"}
