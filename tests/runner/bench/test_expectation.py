"""The block model over whole conversations. Small sequences that can be followed by hand."""

import numpy as np
import pytest

from cachemodel.releases import PoolRules
from enginemetrics.snapshot import CacheConfig
from runner.bench.expectation import (
    Expected,
    ModelledCache,
    SentRequest,
    by_stage,
    expectations,
    modelled_cache,
)

ENDLESS = ModelledCache(4, None, True)
V = "0.32.0"


def ids(*numbers: int) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    return np.array(numbers, dtype=np.int32)


def expect(cache: ModelledCache, *sent: SentRequest) -> list[tuple[int | None, int | None]]:
    return [(expected.least, expected.most) for _, expected in expectations(sent, cache)]


@pytest.mark.parametrize("cache", [ENDLESS, ModelledCache(4, 100, True)])
def test_a_prompt_finds_its_whole_blocks_but_never_its_last_token(cache: ModelledCache) -> None:
    prompt = ids(*range(8))
    assert expect(cache, SentRequest("a", prompt, 1), SentRequest("b", prompt, 1)) == [(0, 0), (4, 4)]
    longer = ids(*range(9))
    assert expect(cache, SentRequest("a", prompt, 1), SentRequest("b", longer, 1)) == [(0, 0), (8, 8)]


@pytest.mark.parametrize("cache", [ENDLESS, ModelledCache(4, 100, True)])
def test_a_quoted_answer_opens_the_bounds(cache: ModelledCache) -> None:
    first = ids(0, 1, 2, 3, 4, 5)
    # The answer 6 7 8 9: its last token is never computed, so 6 7 complete the second block and 8 begins the third.
    second = ids(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    assert expect(cache, SentRequest("a", first, 4, quoted=second), SentRequest("b", second, 1)) == [
        (0, 0),
        (4, 8),
    ]


def test_an_answer_of_one_token_leaves_no_doubt() -> None:
    first, second = ids(0, 1, 2, 3, 4), ids(0, 1, 2, 3, 4, 5, 6, 7, 8)
    assert expect(ENDLESS, SentRequest("a", first, 1, quoted=second), SentRequest("b", second, 1)) == [
        (0, 0),
        (4, 4),
    ]


def test_a_prompt_that_does_not_continue_is_no_quotation() -> None:
    first, other = ids(0, 1, 2, 3, 4, 5), ids(0, 1, 2, 3, 9, 9, 9, 9, 9, 9, 9, 9, 9)
    assert expect(ENDLESS, SentRequest("a", first, 4, quoted=other), SentRequest("b", other, 1)) == [
        (0, 0),
        (4, 4),
    ]


def test_a_small_pool_evicts_in_order() -> None:
    cache = ModelledCache(4, 5, True)  # four usable blocks
    a, b, c = (ids(*range(start, start + 8)) for start in (0, 100, 200))
    sent = [
        SentRequest(name, prompt, 1) for name, prompt in (("a", a), ("b", b), ("c", c), ("a2", a), ("b2", b))
    ]
    assert expect(cache, *sent) == [(0, 0)] * 5, "sequential and one more than fits: LRU never finds anything"
    assert expect(cache, *sent[:2], SentRequest("a2", a, 1)) == [(0, 0), (0, 0), (4, 4)]


def test_a_request_that_never_fits_is_not_predicted() -> None:
    cache = ModelledCache(4, 3, True)
    found = expect(cache, SentRequest("a", ids(*range(20)), 1), SentRequest("b", ids(1, 2, 3), 40))
    assert found == [(None, None), (None, None)]


def test_a_cache_that_is_off_finds_nothing() -> None:
    prompt = ids(*range(9))
    for cache in (ModelledCache(4, None, False), ModelledCache(4, 50, False)):
        assert expect(cache, SentRequest("a", prompt, 1), SentRequest("b", prompt, 1)) == [(0, 0), (0, 0)]


def config(**changes: object) -> CacheConfig:
    values: dict[str, object] = {
        "block_size": 16,
        "num_gpu_blocks": 10,
        "blocks_per_rank": 10,
        "kv_cache_size_tokens": None,
        "enable_prefix_caching": True,
        "prefix_caching_hash_algo": None,
        "prefix_match_unit": None,
        "match_unit": 16,
        "labels": {},
    }
    return CacheConfig(**(values | changes))  # type: ignore[arg-type]


def test_which_caches_can_be_modelled() -> None:
    assert modelled_cache(1, config(), V) == ModelledCache(16, 10, True)
    assert modelled_cache(1, config(enable_prefix_caching=False), V) == ModelledCache(16, 10, False)
    assert modelled_cache(1, config(match_unit=64), V) == ModelledCache(64, None, True), "several KV groups"
    for ranks, cache, reason in (
        (None, None, "metrics cannot be read"),
        (2, config(), "2 data-parallel ranks"),
        (1, None, "block size"),
        (1, config(match_unit=None), "block size"),
    ):
        assert reason in str(modelled_cache(ranks, cache, V))


def test_the_order_of_freeing_is_that_of_the_release() -> None:
    old, new = PoolRules(hashless_first=False), PoolRules()
    # A prompt's partial block is reused first, or last: then the next one takes a block that was cached.
    partial = [SentRequest("first", ids(*range(9)), 1)]
    partial += [SentRequest(f"own{at}", ids(*range(100 * at, 100 * at + 3)), 1) for at in range(1, 4)]
    sent = [*partial, SentRequest("again", ids(*range(9)), 1)]

    def last(*rules: PoolRules) -> tuple[int | None, int | None]:
        return expect(ModelledCache(4, 4, True, rules), *sent)[-1]

    assert (last(new), last(old)) == ((8, 8), (0, 0))
    assert last(new, old) == (0, 8), "either of them, where the release is not known"
    for version, rules in (("0.23.0", (old,)), ("0.24.0", (new,)), (None, (new, old))):
        found = modelled_cache(1, config(), version)
        assert isinstance(found, ModelledCache)
        assert found.rules == rules


def test_agreement_and_sums() -> None:
    expected = {"a": Expected(10, 4, 8), "b": Expected(10, 0, 0), "c": Expected(10, None, None)}
    assert [expected["a"].agrees(n) for n in (0, 4, 8, 12)] == [False, True, True, False]
    assert not expected["c"].agrees(0)
    assert by_stage(expected, ["a", "b"]) == (4, 8)
    assert by_stage(expected, ["a", "c"]) is None
    assert by_stage(expected, ["a", "unknown"]) is None
    assert by_stage(expected, []) == (0, 0)
