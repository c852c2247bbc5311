"""When a reader is warned, and when not."""

from typing import Any

import pytest

from contract.bench import BenchPhase, CacheEvidence
from runner.bench.expectation import Expected
from runner.bench.findings import contamination, differing_lengths, missed_rate, missing_reuse, not_measurable
from tests.runner.bench.records import record


def evidence(**values: Any) -> CacheEvidence:
    return CacheEvidence(**{"stage": "formal", "prompt_tokens": 1000, **values})


@pytest.mark.parametrize(
    ("values", "tokens"),
    [
        ({"hit_tokens": 64, "predicted_least": 64, "predicted_most": 64}, None),
        ({"hit_tokens": 60, "predicted_least": 32, "predicted_most": 64}, None),
        ({"hit_tokens": 96, "predicted_least": 32, "predicted_most": 64}, 32),
        ({"hit_tokens": 96, "cached_tokens": 96, "predicted_least": 32, "predicted_most": 64}, 32),
        ({"hit_tokens": 96, "cached_tokens": 64, "predicted_least": 32, "predicted_most": 64}, None),
        ({"cached_tokens": 96, "predicted_least": 0, "predicted_most": 0}, 96),
        ({"hit_tokens": 96, "external_hit_tokens": 50, "predicted_least": 0, "predicted_most": 0}, None),
        ({"hit_tokens": 96}, None),
        ({"predicted_least": 0, "predicted_most": 0}, None),
    ],
)
def test_contamination(values: dict[str, Any], tokens: int | None) -> None:
    found = contamination(evidence(**values))
    assert (found and found.tokens) == tokens
    assert found is None or found.code == "CONTAMINATED"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"hit_tokens": 0, "predicted_least": 500, "predicted_most": 500}, "of 500 tokens"),
        ({"hit_tokens": 100, "predicted_least": 500, "predicted_most": 500}, "100 were found"),
        ({"hit_tokens": 500, "predicted_least": 500, "predicted_most": 500}, None),
        (
            {"hit_tokens": 100, "external_hit_tokens": 400, "predicted_least": 500, "predicted_most": 500},
            None,
        ),
        ({"cached_tokens": 500, "predicted_least": 500, "predicted_most": 500}, None),
        ({"hit_tokens": 0}, "cold cache"),
        (
            {"hit_tokens": 0, "predicted_least": 0, "predicted_most": 0},
            "cold cache, as the block model expects",
        ),
        ({"hit_tokens": 5}, None),
        ({}, None),
        ({"hit_tokens": 0, "prompt_tokens": 0}, None),
    ],
)
def test_missing_reuse(values: dict[str, Any], said: str | None) -> None:
    found = missing_reuse(evidence(**values), caching=None)
    assert (found is None) == (said is None)
    assert found is None or (found.code == "REUSE_MISSING" and str(said) in found.message)


@pytest.mark.parametrize(
    ("values", "caching", "said", "refuted"),
    [
        ({"hit_tokens": 0, "query_tokens": 1000}, False, "prefix caching is off", ["others", "emptied"]),
        ({"hit_tokens": 0, "query_tokens": 1000}, True, "no ledger shows why", ["is off", "others"]),
        ({"hit_tokens": 0, "query_tokens": 1000}, None, "its prefix caching is off, or", ["others"]),
        ({"hit_tokens": 96, "query_tokens": 1000}, None, "emptied meanwhile", ["is off", "others"]),
        ({"hit_tokens": 96, "query_tokens": 1250}, None, "250 prompt tokens more", ["is off", "emptied"]),
        ({"cached_tokens": 96}, True, "others used the engine (no counter", ["is off"]),
    ],
)
def test_missing_reuse_names_no_cause_that_a_ledger_refutes(
    values: dict[str, Any], caching: bool | None, said: str, refuted: list[str]
) -> None:
    found = missing_reuse(evidence(predicted_least=500, predicted_most=500, **values), caching=caching)
    assert found is not None
    assert said in found.message
    assert not [cause for cause in refuted if cause in found.message]


def test_a_cache_that_is_off_is_not_called_too_small() -> None:
    found = missing_reuse(evidence(cached_tokens=0, predicted_least=0, predicted_most=0), caching=False)
    assert found is not None
    assert "prefix caching is off" in found.message
    assert "size" not in found.message


def test_counters_that_say_nothing_are_told_unless_caching_is_off() -> None:
    silent = evidence(cached_tokens=64, unavailable={"hit_tokens": "they stand still"})
    found = not_measurable(silent, caching=True)
    assert found is not None
    assert (found.code, found.message) == ("NOT_MEASURABLE", "formal: they stand still")
    assert not_measurable(silent, caching=False) is None
    assert not_measurable(evidence(hit_tokens=0), caching=True) is None


def phase(**values: Any) -> BenchPhase:
    numbers = {
        "planned": 10, "started": 10, "answered": 10, "failed": 0, "aborted": 0, "withdrawn": 0, "seconds": 2.0,
        "requested_concurrency": None, "mean_in_flight": 1.0, "max_in_flight": 1, "requested_rate": 5.0,
        "reached_rate": 5.0, "mean_lag_seconds": 0.0, "max_lag_seconds": 0.0, "reopened_connections": 0,
    }  # fmt: skip
    return BenchPhase(name="queries", stage="formal", **(numbers | values))


def test_missed_rate() -> None:
    assert missed_rate(phase()) is None
    assert missed_rate(phase(reached_rate=4.8)) is None
    assert missed_rate(phase(requested_rate=None, reached_rate=None)) is None
    late, unsent = missed_rate(phase(reached_rate=4.0)), missed_rate(phase(withdrawn=15, planned=25))
    assert late is not None
    assert "5 requests per second were asked for, 4.00 reached" in late.message
    assert unsent is not None
    assert "15 of 25 requests were not sent in time" in unsent.message


def test_differing_lengths() -> None:
    records = [record(0, prompt_tokens=100), record(1, prompt_tokens=101), record(2, prompt_tokens=102)]
    planned = {"r0": Expected(100, 0, 0), "r1": Expected(100, None, None)}
    found = differing_lengths(records, planned)
    assert found is not None
    assert found.message.startswith(
        "1 of 2 prompts have another length than planned; r1: 101 tokens, planned 100"
    )
    assert differing_lengths(records[:1], planned) is None
    assert differing_lengths([], {}) is None
