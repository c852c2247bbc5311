"""Seeds: distinct by construction, given back by their number, made of tokens that live together."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prompts.corpus import EncodedCorpus, load_corpus
from prompts.seeds import LARGEST_NUMBER, SeedSpace, find_safe_tokens
from prompts.tokenizer import Tokenizer


@given(
    base=st.integers(1, 9),
    free=st.integers(1, 4),
    seed=st.integers(-(2**40), 2**40),
    length=st.integers(4, 40),
)
def test_every_index_has_its_own_seed(base: int, free: int, seed: int, length: int) -> None:
    space = SeedSpace.over([100 + i for i in range(base)], free, seed)
    assert space.capacity == base ** (free if base > 1 else 1)
    numbers = [space.number(i) for i in range(space.capacity)]
    assert sorted(numbers) == list(range(space.capacity))
    fronts = {tuple(space.tokens(number, length)[:free]) for number in numbers}
    assert len(fronts) == space.capacity
    assert space.tokens(numbers[0], length) == space.tokens(numbers[0], length)
    assert {len(space.tokens(number, length)) for number in numbers} == {length}


def test_numbers_stay_below_what_json_readers_keep() -> None:
    space = SeedSpace.over(range(512), 16, seed=47)
    assert space.capacity == LARGEST_NUMBER
    numbers = [space.number(i) for i in range(20_000)]
    assert max(numbers) < LARGEST_NUMBER
    assert len({tuple(space.tokens(n, 6)) for n in numbers}) == len(numbers)
    with pytest.raises(ValueError):
        space.number(-1)
    with pytest.raises(ValueError):
        space.number(LARGEST_NUMBER)


def test_another_run_seed_gives_other_seeds() -> None:
    one, two = (SeedSpace.over(range(512), 16, seed).number(0) for seed in (1, 2))
    assert one != two


@pytest.mark.parametrize("kind", ["mistral-json", "wordpiece", "bpe-across-spaces"])
def test_safe_tokens_survive_in_rows(tokenizer_of: Callable[[str], Tokenizer], kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    corpus = EncodedCorpus(load_corpus("builtin:word-problems", "question"), tokenizer)
    safe = find_safe_tokens(tokenizer, corpus, 128, 64)
    assert 64 <= len(safe) == len(set(safe)) <= 128
    assert not set(safe) & set(tokenizer.special_token_ids)
    rng = random.Random(7)
    rows = [[rng.choice(safe) for _ in range(12)] for _ in range(300)]
    again = tokenizer.encode_batch(tokenizer.decode_batch(rows))
    assert sum(a != b for a, b in zip(again, rows, strict=True)) <= (30 if "across" in kind else 0)
