"""Block arithmetic of requests with images against the block-exact model, which is handed whole prompts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.multimodal.expected import compared, expect, expected_document, together_with_the_first
from analyzer.request_table import Attempts, RequestTable
from cachemodel.prediction import PlannedRequest, predict
from contract.measurement import ImageRecord
from contract.planned import UNKNOWN, PlannedColumns

IMAGE, AFTER = -7, [901, 902, 903]


def record(before: int, text: int, unit: int, **fields: Any) -> ImageRecord:
    values: dict[str, Any] = {
        "scenario": "single_1080p",
        "images_per_request": 1,
        "prompt_tokens": before + text + len(AFTER),
        "image_tokens": before,
        "tokens_before_text": before,
        "tokens_after_text": len(AFTER),
        "match_unit": unit,
        "shared_tokens": before // unit * unit,
    }
    return ImageRecord(**{**values, **fields})


def table(cached: list[int], prompt: int, *, errors: list[str | None] | None = None) -> RequestTable:
    """Requests that were answered one after another, a second each."""
    count = len(cached)
    zero = np.zeros(count, dtype=np.int64)
    errors = errors or [None] * count
    places = np.arange(count, dtype=np.int64)
    attempts = Attempts(
        position=places,
        attempt=zero + 1,
        started_ns=places * 10**9,
        chunks=zero,
        prompt_tokens=zero + prompt,
        completion_tokens=zero + 1,
        cached_tokens=np.array(cached, dtype=np.int64),
        wall_start=zero.astype(float),
        ttft_s=zero.astype(float),
        e2el_s=zero.astype(float) + 0.9,
        request_id=pa.chunked_array([[f"request-{n:08d}" for n in range(count)]]),
        error_kind=pa.chunked_array([pa.array(errors, type=pa.string())]),
    )
    plan = PlannedColumns(zero, ("single_1080p",), zero + UNKNOWN, zero + prompt, zero + 1, zero, zero)
    failed = np.array([error is not None for error in errors])
    return RequestTable(plan, attempts, places, ~failed, failed)


texts_of_one_length = st.integers(1, 40).flatmap(
    lambda size: st.lists(st.lists(st.integers(0, 1), min_size=size, max_size=size), min_size=1, max_size=12)
)


@given(texts_of_one_length, st.integers(1, 50), st.integers(1, 16))
def test_one_rank_is_the_block_model(texts: list[list[int]], before: int, unit: int) -> None:
    prompts = [[IMAGE] * before + text + AFTER for text in texts]
    predicted = list(predict((PlannedRequest(prompt) for prompt in prompts), unit))
    requests = table(predicted, len(prompts[0]))
    ids = [np.array(text, dtype=np.int32) for text in texts]
    # Texts that are equal to their end would share what stands behind them; prepare makes no two equal ones.
    if len({tuple(text) for text in texts}) == len(texts):
        found = expect(record(before, len(texts[0]), unit), requests, ids, {0: sum(map(len, prompts))})
        assert found.total == sum(predicted)
        assert compared(found, requests)["differing_requests"] == 0


@given(texts_of_one_length, st.integers(1, 50), st.integers(1, 16), st.integers(2, 3), st.randoms())
def test_several_ranks_stay_in_the_range(
    texts: list[list[int]], before: int, unit: int, ranks: int, rng: Any
) -> None:
    texts = [list(text) for text in dict.fromkeys(map(tuple, texts))]
    prompts = [[IMAGE] * before + text + AFTER for text in texts]
    chosen = [rng.randrange(ranks) for _ in texts]
    predicted = list(predict((PlannedRequest(p, rank=r) for p, r in zip(prompts, chosen, strict=True)), unit))
    requests = table(predicted, len(prompts[0]))
    queries = {rank: chosen.count(rank) * len(prompts[0]) for rank in range(ranks)}
    ids = [np.array(text, dtype=np.int32) for text in texts]
    made = record(before, len(texts[0]), unit)
    found = expect(made, requests, ids, queries)
    assert compared(found, requests)["differing_requests"] == 0
    document = expected_document(found, made, requests)
    assert document["hit_tokens_at_least"] <= sum(predicted) <= document["hit_tokens_at_most"]
    if found.total is not None:
        assert found.total == sum(predicted)
    else:
        assert found.reason is not None


def simple(count: int = 5) -> tuple[ImageRecord, list[np.ndarray[Any, np.dtype[np.int32]]]]:
    """100 tokens in front of texts that begin with different ones; blocks of 16, so 96 are shared."""
    return record(100, 10, 16), [np.arange(n, n + 10, dtype=np.int32) * 100 for n in range(count)]


def test_a_primed_cache_has_no_first() -> None:
    made, texts = simple()
    requests = table([96] * 5, made.prompt_tokens)
    found = expect(made.model_copy(update={"primed": True}), requests, texts, {0: 1, 1: 1})
    assert found.total == 5 * 96
    assert compared(found, requests)["found_nothing"] == 0


def test_the_last_block_that_speculation_takes() -> None:
    made, texts = simple()
    dropped = made.model_copy(update={"shared_tokens": 80, "drops_last_block": True})
    found = expect(dropped, table([0, 80, 80, 80, 80], made.prompt_tokens), texts, {0: 565})
    assert found.total == 320


@pytest.mark.parametrize(
    ("made", "queries", "errors", "reason"),
    [
        (None, {0: 565, 1: 0}, None, "ended before its probes"),
        (
            simple()[0].model_copy(update={"shared_tokens": None, "reason": "no /tokenize"}),
            {0: 565},
            None,
            "no /tokenize",
        ),
        (simple()[0], {0: None, 1: None}, None, "do not report how many ranks"),
        (simple()[0], {0: 565, 1: 0}, [None, "timeout", None, None, None], "1 requests failed"),
    ],
)
def test_what_cannot_be_known_is_null_with_a_reason(
    made: ImageRecord | None, queries: dict[int, int | None], errors: list[str | None] | None, reason: str
) -> None:
    requests = table([0, 96, 96, 96, 96], 113, errors=errors)
    found = expect(made, requests, simple()[1], queries)
    assert found.total is None
    document = expected_document(found, made, requests)
    assert document["hit_tokens"] is None
    assert document["hit_rate"] is None
    assert reason in document["reason"]


def test_requests_that_found_less_are_named_and_explained_where_they_overlapped() -> None:
    made, texts = simple()
    requests = table([0, 32, 96, 96, 96], made.prompt_tokens)
    found = expect(made, requests, texts, {0: 565})
    shown = compared(found, requests)
    assert shown["differing_requests"] == 1
    assert shown["differing"] == [
        {
            "request_id": "request-00000001",
            "sequence_index": 1,
            "expected_hit_tokens": 96,
            "cached_tokens": 32,
        }
    ]
    assert not together_with_the_first(found, requests)  # it began when the first was over
    overlapping = replace(
        requests, attempts=replace(requests.attempts, started_ns=requests.attempts.started_ns // 10)
    )
    assert together_with_the_first(found, overlapping)
