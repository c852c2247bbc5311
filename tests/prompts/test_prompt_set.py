"""Prompts are exact to the token, unique where they must be, and repaired where naive joining fails.

The checks here know nothing of how prompts are built: they encode the text as the server does and compare whole blocks.
"""

import dataclasses
import hashlib
import itertools
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ScenarioError
from prompts import prompt_set
from prompts.corpus import Corpus, EncodedCorpus, Selection, load_corpus
from prompts.prompt_set import GroupInput, PromptSet, RequestColumns
from prompts.tokenizer import Tokenizer, load_tokenizer

TokenizerOf = Callable[[str], Tokenizer]
Row = tuple[int, int, int]  # group, input tokens, prefix tokens

DEMO = load_tokenizer("builtin:demo")
WORD_PROBLEMS = load_corpus("builtin:word-problems", "question")


def made_corpus(*texts: str) -> Corpus:
    return Corpus("made.jsonl", "", texts, tuple(hashlib.sha256(text.encode()).hexdigest() for text in texts))


def prompts_for(
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    *,
    block: int = 16,
    seed_blocks: int = 1,
    ranks: int = 1,
    corpus: Corpus = WORD_PROBLEMS,
    selections: dict[int, Selection] | None = None,
    run_seed: int = 42,
    largest: dict[int, int] | None = None,
) -> PromptSet:
    """A prompt set for rows in final order; every group's largest prefix is that of its rows unless given."""
    count = 1 + max((group for group, _, _ in rows), default=0)
    seen: Counter[int] = Counter()
    occurrence = []
    for group, _, _ in rows:
        occurrence.append(seen[group])
        seen[group] += 1
    columns = RequestColumns(
        request_number=np.arange(len(rows))[::-1].copy(),
        group=np.array([row[0] for row in rows], dtype=np.int32),
        occurrence=np.array(occurrence, dtype=np.int32),
        input_tokens=np.array([row[1] for row in rows], dtype=np.int64),
        prefix_tokens=np.array([row[2] for row in rows], dtype=np.int64),
    )
    groups = [
        GroupInput(
            name=f"group-{g}",
            index=g,
            selection=(selections or {}).get(g, Selection()),
            max_prefix_tokens=(largest or {}).get(g, max((row[2] for row in rows if row[0] == g), default=0)),
            size=sum(row[0] == g for row in rows),
        )
        for g in range(count)
    ]
    return PromptSet(
        tokenizer, corpus, groups, columns,
        block_size=block, seed_tokens=block * seed_blocks, run_seed=run_seed, ranks_for_warmup=ranks,
    )  # fmt: skip


def random_rows(
    count: int, groups: int, block: int, seed_tokens: int, longest: int, first: int = 0
) -> list[Row]:
    rng = random.Random(count)
    rows = []
    for _ in range(count):
        length = rng.randint(first + seed_tokens, longest)
        blocks = rng.randint(first // block, (length - seed_tokens) // block)
        rows.append((rng.randrange(groups), length, blocks * block))
    return rows


def assert_exact(
    prompts: PromptSet, tokenizer: Tokenizer, rows: Sequence[Row], block: int
) -> list[tuple[str, ...]]:
    """Check every prompt from outside; returns the repairs of each."""
    canonical = [group.ids.tolist() for group in prompts.groups]
    fronts = [tuple(ids[:block]) for ids in canonical if ids]
    assert len(set(fronts)) == len(fronts), "two groups share their first block"
    chains: set[tuple[int, ...]] = set()
    numbers: set[int] = set()
    repairs = []

    def check(group: int, prefix: int, length: int, text: str, ids: list[int]) -> None:
        assert tokenizer.encode_for_server(text) == ids
        assert len(ids) == length
        assert ids[:prefix] == canonical[group][:prefix]
        own = tuple(ids[: prefix + block])
        assert own not in chains, "the first own block is not unique"
        chains.add(own)
        for shared in canonical:
            assert len(shared) < prefix + block or tuple(shared[: prefix + block]) != own

    for (group, length, prefix), built in zip(rows, prompts.requests(), strict=True):
        check(group, prefix, length, built.text, built.token_ids.tolist())
        assert built.prefix_tokens == prefix
        assert built.prefix_tokens + built.seed_tokens + built.suffix_tokens == length
        assert built.divergence_unique
        assert built.request_id == f"request-{len(rows) - 1 - built.position:08d}"
        assert 0 <= built.random_seed < 2**53
        assert built.random_seed not in numbers
        numbers.add(built.random_seed)
        front = 0 if prefix else len(tokenizer.leading_ids)
        end = min(prefix + built.seed_tokens, length - len(tokenizer.trailing_ids))
        seed = built.token_ids[prefix + front : end].tolist()
        assert prompts.seeds.tokens(built.random_seed, len(seed)) == seed
        repairs.append(built.repairs)
    for warmup in prompts.warmups():
        group = int(warmup.group.removeprefix("group-"))
        assert warmup.prefix_tokens == len(canonical[group])
        check(
            group,
            warmup.prefix_tokens,
            warmup.prefix_tokens + warmup.seed_tokens,
            warmup.text,
            warmup.token_ids.tolist(),
        )
        assert warmup.divergence_unique
        assert warmup.request_id == f"warmup:{warmup.group}:{warmup.rank}"
        assert warmup.random_seed not in numbers
        numbers.add(warmup.random_seed)
    return repairs


KINDS = ["qwen", "mistral-sentencepiece", "tekken", "deepseek", "bpe-bos", "unigram", "unigram-bos", "metaspace-bpe",
         "wordpiece", "wordpiece-bos", "bpe-across-spaces", "bpe-across-spaces-bos"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_exact_with_every_kind_of_tokenizer(tokenizer_of: TokenizerOf, kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    for block, seed_blocks in ((16, 1), (4, 2)):
        rows = [(0, block * seed_blocks, 0), *random_rows(16, 3, block, block * seed_blocks, 300)]
        prompts = prompts_for(tokenizer, rows, block=block, seed_blocks=seed_blocks, ranks=2)
        assert_exact(prompts, tokenizer, rows, block)


@pytest.mark.parametrize("kind", ["qwen", "mistral-json", "tekken"])
def test_exact_on_gsm8k(tokenizer_of: TokenizerOf, kind: str) -> None:
    file = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "gsm8k_test.jsonl"
    if not file.is_file():
        pytest.skip("GSM8K is not beside the checkout")
    tokenizer = tokenizer_of(kind)
    rows = random_rows(24, 2, 32, 32, 1500)
    prompts = prompts_for(tokenizer, rows, block=32, corpus=load_corpus(file, "question"))
    assert_exact(prompts, tokenizer, rows, 32)


@given(
    block=st.sampled_from([1, 2, 3, 16, 32]),
    seed_blocks=st.integers(1, 3),
    shape=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 70), st.floats(0, 1)), min_size=1, max_size=12
    ),
    ranks=st.integers(0, 3),
    run_seed=st.integers(0, 2**31),
)
@settings(max_examples=10)
def test_exact_for_any_plan(
    block: int, seed_blocks: int, shape: list[tuple[int, int, float]], ranks: int, run_seed: int
) -> None:
    rows = [
        (group, seed_blocks * block + extra, int(extra // block * part) * block)
        for group, extra, part in shape
    ]
    prompts = prompts_for(DEMO, rows, block=block, seed_blocks=seed_blocks, ranks=ranks, run_seed=run_seed)
    assert_exact(prompts, DEMO, rows, block)


def test_the_suffix_goes_through_the_pool_and_is_recorded() -> None:
    selection = Selection("indices", indices=(7, 8, 9))
    rows = [(0, 216, 16)] * 3
    prompts = prompts_for(DEMO, rows, selections={0: selection})
    encoded = EncodedCorpus(WORD_PROBLEMS, DEMO)
    for built in prompts.requests():
        start = built.position % 3
        order = [(7, 8, 9)[(start + i) % 3] for i in range(len(built.suffix_record_indices))]
        assert list(built.suffix_record_indices) == order
        assert list(built.suffix_record_sha256) == [WORD_PROBLEMS.sha256[i] for i in order]
        natural = list(itertools.chain.from_iterable(encoded.following(i).tolist() for i in order))
        assert built.token_ids[32:].tolist() == natural[: 216 - 32]
        assert built.seed_sha256 == hashlib.sha256(built.token_ids[16:32].astype("<i4").tobytes()).hexdigest()
        assert built.divergence_block_sha256 == built.seed_sha256
    assert prompts.groups[0].record_indices == (7,)
    assert (
        prompts.groups[0].sha256 == hashlib.sha256(prompts.groups[0].ids.astype("<i4").tobytes()).hexdigest()
    )


def test_the_same_seed_gives_the_same_prompts_and_iterating_again_too(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("bpe-across-spaces")
    rows = random_rows(40, 2, 4, 4, 300)
    one, two = (prompts_for(tokenizer, rows, block=4, ranks=2) for _ in range(2))
    first = [(built.text, built.random_seed, built.repairs) for built in [*one.requests(), *one.warmups()]]
    counted = one.repairs
    assert [(b.text, b.random_seed, b.repairs) for b in [*one.requests(), *one.warmups()]] == first
    assert one.repairs == counted
    assert [(b.text, b.random_seed, b.repairs) for b in [*two.requests(), *two.warmups()]] == first
    other = prompts_for(tokenizer, rows, block=4, ranks=2, run_seed=43)
    assert {built.random_seed for built in other.requests()} != {seed for _, seed, _ in first[:40]}


def naive_failures(tokenizer: Tokenizer, prompts: PromptSet, rows: Sequence[Row], block: int) -> int:
    """How many prompts fail when prefix, seed and separately encoded records are just put together."""
    encoded = EncodedCorpus(WORD_PROBLEMS, tokenizer)
    failures = 0
    for (_, length, prefix), built in zip(rows, prompts.requests(), strict=True):
        records = [encoded.following(i).tolist() for i in built.suffix_record_indices]
        suffix = list(itertools.chain.from_iterable(records))[: length - prefix - block]
        ids = [*built.token_ids[: prefix + block].tolist(), *suffix]
        failures += tokenizer.encode(tokenizer.decode(ids)) != ids
    return failures


def test_where_naive_joining_fails_prompts_are_repaired_and_counted(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("bpe-across-spaces")
    rows = random_rows(60, 2, 16, 16, 400)
    prompts = prompts_for(tokenizer, rows)
    repairs = assert_exact(prompts, tokenizer, rows, 16)
    repaired = sum(bool(kinds) for kinds in repairs)
    assert naive_failures(tokenizer, prompts, rows, 16) >= 0.05 * len(rows)
    assert repaired >= 0.05 * len(rows)
    by_kind = prompts.repairs
    assert by_kind["suffix encoded anew"] == sum(kinds.count("suffix encoded anew") for kinds in repairs) > 0


def test_a_cut_inside_a_character_is_repaired() -> None:
    # Every apple is four byte tokens; most cuts and ends fall inside one.
    corpus = made_corpus(*(f"{'🍎' * n} and {'🍏' * (n + 1)}" for n in range(20, 40)))
    rows = random_rows(40, 2, 16, 16, 300)
    prompts = prompts_for(DEMO, rows, corpus=corpus)
    assert_exact(prompts, DEMO, rows, 16)
    assert prompts.repairs["prefix cut"] > 0
    assert prompts.repairs["suffix end"] > 0


def test_groups_with_the_same_records_still_differ_in_their_first_block() -> None:
    rows = [(g, 100, 48) for g in range(5) for _ in range(2)]
    same = {g: Selection("indices", indices=(3,)) for g in range(5)}
    prompts = prompts_for(DEMO, rows, selections=same)
    assert_exact(prompts, DEMO, rows, 16)
    assert prompts.repairs["prefix marker"] == 4


def test_a_seed_that_equals_the_canonical_continuation_is_replaced() -> None:
    # Blocks of one token, and a prefix of the very words that seeds are made of.
    seeds = prompts_for(DEMO, [(0, 60, 0)] * 200, block=1, ranks=0).seeds
    numbers = {seeds.tokens(seeds.number(i), 1)[0]: i for i in range(200)}
    selection = {0: Selection("indices", indices=(0,))}
    corpus = made_corpus(DEMO.decode(list(numbers)[:150]).strip())
    plain = prompts_for(
        DEMO, [(0, 60, 0)] * 200, block=1, corpus=corpus, selections=selection, largest={0: 50}
    )
    numbers = {plain.seeds.tokens(plain.seeds.number(i), 1)[0]: i for i in range(200)}
    clashes = {numbers[token]: p for p, token in enumerate(plain.groups[0].ids.tolist()) if token in numbers}
    assert len(clashes) > 5
    rows = [(0, 60, clashes.get(i, 0)) for i in range(200)]
    prompts = prompts_for(DEMO, rows, block=1, corpus=corpus, selections=selection, largest={0: 50})
    repairs = assert_exact(prompts, DEMO, rows, 1)
    assert all("seed" in repairs[i] for i in clashes)


def test_a_group_without_prefix_has_a_warmup_and_an_empty_prefix() -> None:
    rows = [(0, 40, 0), (1, 40, 16)]
    prompts = prompts_for(DEMO, rows, ranks=3)
    assert_exact(prompts, DEMO, rows, 16)
    warmups = list(prompts.warmups())
    assert [(w.group, w.rank, len(w.token_ids)) for w in warmups] == [
        *(("group-0", rank, 16) for rank in range(3)),
        *(("group-1", rank, 32) for rank in range(3)),
    ]
    assert len(prompts.groups[0].ids) == 0
    assert list(prompts_for(DEMO, rows, ranks=0).warmups()) == []


@dataclasses.dataclass
class WithEnds:
    """A tokenizer whose server puts ids in front and behind."""

    inner: Tokenizer
    leading_ids: tuple[int, ...]
    trailing_ids: tuple[int, ...]

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def encode_for_server(self, text: str) -> list[int]:
        return self.encode_batch_for_server([text])[0]

    def encode_batch_for_server(self, texts: Sequence[str]) -> list[list[int]]:
        return [[*self.leading_ids, *ids, *self.trailing_ids] for ids in self.inner.encode_batch(texts)]


@pytest.mark.parametrize(("leading", "trailing"), [((1,), ()), ((), (2,)), ((1, 0), (2, 2))])
def test_ids_in_front_and_behind_count(leading: tuple[int, ...], trailing: tuple[int, ...]) -> None:
    tokenizer: Tokenizer = WithEnds(DEMO, leading, trailing)  # type: ignore[assignment]
    rows = [(0, 8, 0), (1, 9, 0), (1, 17, 8), *random_rows(30, 2, 8, 8, 120)]
    prompts = prompts_for(tokenizer, rows, block=8, ranks=2)
    assert_exact(prompts, tokenizer, rows, 8)
    for built in prompts.requests():
        assert tuple(built.token_ids[: len(leading)]) == leading
        assert tuple(built.token_ids[len(built.token_ids) - len(trailing) :]) == trailing


def test_a_block_no_larger_than_the_ids_in_front_is_refused() -> None:
    tokenizer: Tokenizer = WithEnds(DEMO, (1,), ())  # type: ignore[assignment]
    with pytest.raises(
        ScenarioError, match=r"tokenizer\.block_size: .* puts 1 token\(s\) in front .* use at least 2"
    ):
        prompts_for(tokenizer, [(0, 20, 0)], block=1, ranks=0)
    with pytest.raises(ScenarioError, match="all groups would share their first block of 1; use at least 2"):
        prompts_for(tokenizer, [(0, 20, 10), (1, 20, 10)], block=1, ranks=0)
    rows = [(0, 20, 10), (0, 30, 5)]
    assert_exact(prompts_for(tokenizer, rows, block=1), tokenizer, rows, 1)


def test_more_requests_than_seeds_is_refused_with_the_number() -> None:
    rows = [(0, 3, 1)] * 6000
    with pytest.raises(
        ScenarioError, match=r"tokenizer\.block_size: a block of 1 has room for \d+ .* 6001 prompts"
    ):
        prompts_for(DEMO, rows, block=1)
    few = rows[:500]
    assert_exact(prompts_for(DEMO, few, block=1), DEMO, few, 1)


class Forgetful(WithEnds):
    """A tokenizer that never gives back a text of more than 40 tokens as it was."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[*ids[:40], *([9] * (len(ids) > 40)), *ids[41:]] for ids in self.inner.encode_batch(texts)]

    def encode_batch_for_server(self, texts: Sequence[str]) -> list[list[int]]:
        return self.encode_batch(texts)


def test_when_nothing_helps_the_error_names_request_and_place() -> None:
    tokenizer: Tokenizer = Forgetful(DEMO, (), ())  # type: ignore[assignment]
    short = made_corpus("Two apples.", "Nine pears, please.")
    prompts = prompts_for(tokenizer, [(0, 39, 16), (0, 90, 16)], corpus=short)
    with pytest.raises(
        ScenarioError, match=r"^request-00000000: .* between records at token 40 of 90, after \d+ repairs"
    ):
        list(prompts.requests())
    with pytest.raises(ScenarioError, match=r"shared prefix of group-0 does not survive .* at token 64"):
        prompts_for(tokenizer, [(0, 90, 64)], corpus=short)


@pytest.mark.parametrize(
    ("rows", "largest", "expected"),
    [
        ([(0, 40, 8)], {}, "multiples of block_size"),
        ([(0, 40, 32)], {}, "room for prefix and seed"),
        ([(0, 40, 16)], {0: 0}, "exceed its group's"),
    ],
)
def test_a_plan_that_contradicts_itself(rows: list[Row], largest: dict[int, int], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        prompts_for(DEMO, rows, largest=largest)


def test_prompts_stream_with_flat_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_set, "_BATCH_TOKENS", 4096)
    rows = [(0, 64, 32)] * 1500
    prompts = prompts_for(DEMO, rows, corpus=made_corpus(*WORD_PROBLEMS.texts[:50]))
    stream = prompts.requests()
    next(stream)
    tracemalloc.start()
    try:
        for _ in stream:
            pass
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 400 * len(rows)
    assert peak < kept + 4_000_000
