"""Predictions for requests sent one after another, against quadratic counting and hand-made cases."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachemodel.prediction import PlannedRequest, predict

rows = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=20), st.integers(0, 1), st.integers(1, 4)),
    max_size=15,
)


def planned(plan: list[tuple[list[int], int, int]]) -> list[PlannedRequest]:
    return [PlannedRequest(ids, output_tokens=output, rank=rank) for ids, rank, output in plan]


@given(plan=rows, size=st.integers(1, 4))
def test_an_endless_cache_finds_the_longest_earlier_prefix_of_the_rank(
    plan: list[tuple[list[int], int, int]], size: int
) -> None:
    expected = []
    for index, (ids, rank, _) in enumerate(plan):
        best = 0
        for earlier, other, _ in plan[:index]:
            if other != rank:
                continue
            common = 0
            while common < min(len(ids), len(earlier)) and ids[common] == earlier[common]:
                common += 1
            # Only whole blocks of the earlier prompt were stored; never the last token of this one.
            best = max(best, min(common, len(ids) - 1) // size * size)
        expected.append(best)
    assert list(predict(planned(plan), size)) == expected


@given(plan=rows, size=st.integers(1, 4))
def test_a_large_enough_pool_is_an_endless_one(plan: list[tuple[list[int], int, int]], size: int) -> None:
    assert list(predict(planned(plan), size, num_blocks=2000)) == list(predict(planned(plan), size))


@given(plan=rows, size=st.integers(1, 4))
def test_more_blocks_never_find_less_for_one_family(
    plan: list[tuple[list[int], int, int]], size: int
) -> None:
    family = [PlannedRequest([1] * len(ids), output_tokens=output) for ids, _, output in plan]
    answers = [list(predict(family, size, num_blocks)) for num_blocks in (26, 40, 200)]
    for smaller, larger in pairwise(answers):
        assert all(few <= many for few, many in zip(smaller, larger, strict=True))


def test_the_example_of_the_reference() -> None:
    """256 tokens twice with block 32: 0, then 224, because the last block is computed again."""
    ids = list(range(256))
    assert list(predict([PlannedRequest(ids), PlannedRequest(ids)], 32)) == [0, 224]


def test_answers_take_room_and_evict() -> None:
    """Four usable blocks of 4: an answer of 9 tokens leaves 1 block of the first prompt."""
    first, second = [1] * 8, [2] * 4
    plan = [PlannedRequest(first), PlannedRequest(second, output_tokens=9), PlannedRequest([*first, 3])]
    assert list(predict(plan, 4, num_blocks=5)) == [0, 0, 4]
    assert list(predict(plan, 4)) == [0, 0, 8]


def test_a_salt_is_another_cache() -> None:
    ids = list(range(40))
    plan = [PlannedRequest(ids), PlannedRequest(ids, extra_keys=("x",)), PlannedRequest(ids)]
    assert list(predict(plan, 8)) == [0, 0, 32]


def test_requests_are_read_one_at_a_time() -> None:
    def endless():
        while True:
            yield PlannedRequest([1, 2, 3])

    answers = predict(endless(), 2)
    assert [next(answers) for _ in range(3)] == [0, 2, 2]


@pytest.mark.parametrize("num_blocks", [None, 10])
def test_what_no_engine_accepts_is_refused(num_blocks: int | None) -> None:
    with pytest.raises(ValueError, match="request 0: an engine refuses an empty prompt"):
        list(predict([PlannedRequest([])], 4, num_blocks))
    with pytest.raises(ValueError, match="request 1: output_tokens must be at least 1"):
        list(predict([PlannedRequest([1]), PlannedRequest([1], output_tokens=0)], 4, num_blocks))


@pytest.mark.parametrize(("prompt", "output"), [(37, 1), (1, 37), (36, 2)])
def test_a_request_that_never_fits_is_refused(prompt: int, output: int) -> None:
    fits = PlannedRequest([1] * 36, output_tokens=1)
    with pytest.raises(ValueError, match=r"request 1: .* never fit a pool of 9 usable blocks of 4"):
        list(predict([fits, PlannedRequest([1] * prompt, output_tokens=output)], 4, num_blocks=10))
