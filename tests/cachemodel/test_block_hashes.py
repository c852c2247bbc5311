"""The hash chain: equality of hashes is equality of prefixes, and nothing else."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachemodel.block_hashes import HashChain, block_hashes, hit_limit

tokens = st.lists(st.integers(0, 3), max_size=24)


@given(left=tokens, right=tokens, size=st.integers(1, 5))
def test_hashes_agree_exactly_where_whole_blocks_of_the_prefix_do(
    left: list[int], right: list[int], size: int
) -> None:
    first, second = block_hashes(left, size), block_hashes(right, size)
    assert len(first) == len(left) // size
    for index in range(min(len(first), len(second))):
        same = left[: (index + 1) * size] == right[: (index + 1) * size]
        assert (first[index] == second[index]) == same


@given(ids=tokens, size=st.integers(1, 5), cuts=st.lists(st.integers(0, 24), max_size=4))
def test_growing_piece_by_piece_gives_the_same_chain(ids: list[int], size: int, cuts: list[int]) -> None:
    chain = HashChain(size, ("salt",))
    bounds = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    for start, stop in pairwise(bounds):
        if stop - start == 1:
            chain.append(ids[start])
        else:
            chain.extend(ids[start:stop])
    assert chain.hashes == block_hashes(ids, size, ("salt",))
    assert chain.token_count == len(ids)


def test_extra_keys_tell_equal_prompts_apart_in_every_block() -> None:
    ids = list(range(64))
    plain, salted, other = (block_hashes(ids, 32, keys) for keys in ((), ("a", 1), ("a1",)))
    assert not set(plain) & set(salted)
    assert not set(salted) & set(other)


def test_the_type_of_the_row_does_not_matter() -> None:
    ids = list(range(100))
    expected = block_hashes(ids, 16)
    for kind in (np.int32, np.int64, np.uint16, np.uint32, ">i4"):
        assert block_hashes(np.array(ids, dtype=kind), 16) == expected
    assert block_hashes(np.array(ids * 2, dtype=np.int32)[::2], 16) == block_hashes((ids * 2)[::2], 16)


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [
        ([1 << 31], "expected 32-bit values"),
        (np.array([1 << 40]), "expected 32-bit values"),
        ([[1, 2]], "flat row of integers"),
        ([1.5], "flat row of integers"),
        (["a"], "flat row of integers"),
    ],
)
def test_what_is_no_row_of_token_ids_is_refused(ids: list[int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        block_hashes(ids, 4)


def test_block_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size"):
        HashChain(0)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 0), (32, 0), (33, 1), (64, 1), (65, 2)])
def test_the_last_prompt_token_is_never_found(tokens: int, blocks: int) -> None:
    assert hit_limit(tokens, 32) == blocks


def test_a_hundred_thousand_tokens_take_milliseconds() -> None:
    ids = np.arange(100_000, dtype=np.int32)
    start = time.perf_counter()
    block_hashes(ids, 16)
    assert time.perf_counter() - start < 0.25
