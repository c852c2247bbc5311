"""The block pool against a slow model in plain lists that knows no hash, no linked list and no reference table."""

from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachemodel.block_hashes import HashChain
from cachemodel.block_pool import BlockPool
from cachemodel.releases import PoolRules


@dataclass(eq=False)
class SlowBlock:
    content: tuple[int, ...] | None = None  # all tokens from the start of the prompt to the end of the block
    stored: int = 0
    users: set[int] = field(default_factory=set)


class SlowPool:
    """One rank, step by step, in the words of the engine's documentation."""

    def __init__(self, num_blocks: int, size: int, rules: PoolRules) -> None:
        self.size = size
        self.rules = rules
        self.all = [SlowBlock() for _ in range(num_blocks - 1)]
        self.queue = list(self.all)
        self.table: dict[int, list[SlowBlock]] = {}
        self.clock = count(1)

    def find(self, tokens: list[int]) -> list[SlowBlock]:
        found: list[SlowBlock] = []
        for end in range(self.size, len(tokens), self.size):
            same = [block for block in self.all if block.content == tuple(tokens[:end])]
            if not same:
                break
            found.append(min(same, key=lambda block: block.stored))
        return found

    def need(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def admit(self, name: int, tokens: list[int], budget: int) -> int | None:
        found = self.find(tokens)
        spare = [block for block in self.queue if block not in found]
        chunk = min(len(tokens), len(found) * self.size + budget)
        asked = len(tokens) if self.rules.whole_prompt_must_fit else chunk
        if self.need(asked) - len(found) > len(spare):
            return None
        self.queue = spare
        for block in found:
            block.users.add(name)
        self.table[name], hits = found, len(found) * self.size
        self.give(name, tokens, chunk)
        return hits

    def give(self, name: int, tokens: list[int], upto: int) -> None:
        mine = self.table[name]
        while len(mine) < self.need(upto):
            block = self.queue.pop(0)
            block.content = None
            block.users = {name}
            mine.append(block)
        for index, block in enumerate(mine):
            if (index + 1) * self.size <= upto and block.content is None:
                block.content = tuple(tokens[: (index + 1) * self.size])
                block.stored = next(self.clock)

    def extend(self, name: int, tokens: list[int], upto: int) -> bool:
        if self.need(upto) - len(self.table[name]) > len(self.queue):
            return False
        self.give(name, tokens, upto)
        return True

    def finish(self, name: int) -> None:
        mine = self.table.pop(name)
        for block in mine:
            block.users.discard(name)
        idle = [block for block in reversed(mine) if not block.users]
        if not self.rules.hashless_first:
            self.queue += idle
            return
        self.queue = (
            [block for block in idle if block.content is None]
            + self.queue
            + [block for block in idle if block.content is not None]
        )

    def reset(self) -> bool:
        if self.table:
            return False
        for block in self.all:
            block.content = None
        return True


class Both:
    """Drives the pool and the slow model side by side and compares every answer."""

    def __init__(self, num_blocks: int, size: int, rules: PoolRules) -> None:
        self.fast, self.slow = BlockPool(num_blocks, size, rules=rules), SlowPool(num_blocks, size, rules)
        self.size = size
        self.chains: dict[int, HashChain] = {}
        self.tokens: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.names = count()

    def admit(self, tokens: list[int], budget: int) -> bool:
        name = next(self.names)
        chain = HashChain(self.size)
        chain.extend(tokens)
        assert self.fast.lookup(chain) == len(self.slow.find(tokens)) * self.size
        got = self.fast.admit(name, chain, budget)
        expected = self.slow.admit(name, tokens, budget)
        assert (None if got is None else got.cached_tokens) == expected
        if got is not None:
            self.chains[name], self.tokens[name] = chain, list(tokens)
            self.computed[name] = got.computed_tokens
        return got is not None

    def step(self, name: int, tokens: int, fresh: int) -> None:
        """Compute the next `tokens` tokens; when none are left, sample `fresh` first, as decoding does."""
        if self.computed[name] == len(self.tokens[name]):
            self.chains[name].append(fresh)
            self.tokens[name].append(fresh)
        upto = min(self.computed[name] + tokens, len(self.tokens[name]))
        given_slots = self.fast.extend(name, upto)
        assert given_slots == self.slow.extend(name, self.tokens[name], upto)
        if given_slots:
            self.computed[name] = upto
        else:
            self.finish(name)

    def finish(self, name: int) -> None:
        self.fast.finish(name)
        self.slow.finish(name)
        del self.chains[name], self.tokens[name], self.computed[name]

    def agree(self) -> None:
        order, block = [], self.fast._next[0]
        while block:
            order.append(block)
            block = self.fast._next[block]
        position = {id(block): index + 1 for index, block in enumerate(self.slow.all)}
        assert order == [position[id(block)] for block in self.slow.queue]
        assert self.fast.free_blocks == len(order)
        assert self.fast.cached_blocks == sum(block.content is not None for block in self.slow.all)
        assert self.fast.usage == pytest.approx(1 - len(order) / len(self.slow.all))


# Few families of few tokens: shared prefixes, evictions and twin computations are the rule, not the exception.
prompts = st.tuples(st.integers(0, 2), st.integers(1, 14), st.integers(0, 1)).map(
    lambda draw: [draw[0]] * draw[1] + [9] * draw[2]
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), prompts, st.integers(1, 16)),
        st.tuples(st.just("step"), st.integers(0, 5), st.integers(1, 6)),
        st.tuples(st.just("finish"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("reset"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(
    blocks=st.integers(2, 14),
    size=st.integers(1, 4),
    rules=st.builds(PoolRules, st.booleans(), st.booleans()),
    plan=actions,
)
def test_every_answer_and_the_whole_free_queue_agree_with_the_slow_model(
    blocks: int, size: int, rules: PoolRules, plan: list[tuple[str, object, int]]
) -> None:
    both = Both(blocks, size, rules)
    for kind, what, number in plan:
        running = sorted(both.chains)
        if kind == "admit":
            assert isinstance(what, list)
            both.admit(what, number)
        elif kind == "reset":
            assert both.fast.reset() == both.slow.reset()
        elif running:
            assert isinstance(what, int)
            name = running[what % len(running)]
            if kind == "step":
                both.step(name, number, fresh=what)
            else:
                both.finish(name)
        both.agree()
    for name in sorted(both.chains):
        both.finish(name)
    both.agree()
    assert both.fast.usage == 0
    assert both.fast.reset()
    assert both.fast.cached_blocks == 0


def chain_of(tokens: list[int], size: int) -> HashChain:
    chain = HashChain(size)
    chain.extend(tokens)
    return chain


def test_a_prompt_loses_its_tail_before_its_head() -> None:
    pool = BlockPool(num_blocks=5, block_size=2)
    pool.admit("old", chain_of([1, 1, 1, 1, 1, 1], 2))
    pool.finish("old")
    pool.admit("new", chain_of([7, 7, 7, 7], 2))
    assert pool.lookup(chain_of([1, 1, 1, 1, 1, 1, 1], 2)) == 4
    assert pool.evictions == 1


def test_blocks_without_a_hash_are_reused_first() -> None:
    pool = BlockPool(num_blocks=4, block_size=4)
    pool.admit("partial", chain_of([1, 1, 1, 1, 1], 4))
    pool.finish("partial")
    for index in range(5):
        pool.admit(index, chain_of([2, 2], 4))
        pool.finish(index)
    assert pool.lookup(chain_of([1, 1, 1, 1, 1], 4)) == 4
    assert pool.evictions == 0


def test_before_0_24_blocks_without_a_hash_are_reused_last() -> None:
    pool = BlockPool(num_blocks=4, block_size=4, rules=PoolRules(hashless_first=False))
    pool.admit("partial", chain_of([1, 1, 1, 1, 1], 4))
    pool.finish("partial")
    for index in range(5):
        pool.admit(index, chain_of([2, 2], 4))
        pool.finish(index)
    assert pool.lookup(chain_of([1, 1, 1, 1, 1], 4)) == 0
    assert pool.evictions == 1


def test_before_0_19_a_first_chunk_that_fits_is_admitted() -> None:
    prompt = chain_of([1] * 20, 4)
    assert BlockPool(num_blocks=4, block_size=4).admit("long", prompt, token_budget=8) is None
    pool = BlockPool(num_blocks=4, block_size=4, rules=PoolRules(whole_prompt_must_fit=False))
    admission = pool.admit("long", prompt, token_budget=8)
    assert admission is not None
    assert admission.computed_tokens == 8
    assert not pool.extend("long", 20)


def test_chunked_prefill_shows_only_what_has_slots() -> None:
    pool = BlockPool(num_blocks=40, block_size=4)
    prompt = [5] * 32
    first = pool.admit("first", chain_of(prompt, 4), token_budget=10)
    assert first is not None
    assert (first.cached_tokens, first.computed_tokens) == (0, 10)
    second = pool.admit("second", chain_of(prompt, 4))
    assert second is not None
    assert second.cached_tokens == 8
    assert pool.extend("first", 32)
    third = pool.admit("third", chain_of(prompt, 4))
    assert third is not None
    assert third.cached_tokens == 28


def test_copies_outlive_the_block_that_was_found_first() -> None:
    pool = BlockPool(num_blocks=4, block_size=2)
    pool.admit("a", chain_of([1, 1], 2))
    pool.admit("b", chain_of([1, 1], 2))
    assert pool.cached_blocks == 2
    pool.finish("a")
    pool.admit("c", chain_of([3, 3, 3, 3], 2))
    assert pool.cached_blocks == 3
    assert pool.lookup(chain_of([1, 1, 1], 2)) == 2


def test_a_request_that_must_wait_changes_nothing() -> None:
    pool = BlockPool(num_blocks=4, block_size=2)
    pool.admit("a", chain_of([1, 1, 1, 1], 2))
    assert pool.admit("b", chain_of([1, 1, 1, 1, 2, 2, 2, 2], 2)) is None
    assert pool.free_blocks == 1
    assert pool.extend("a", 4)
    pool.finish("a")
    assert pool.admit("b", chain_of([1, 1, 1, 1, 2, 2, 2, 2], 2)) is None, "four blocks never fit three"


def test_reset_waits_for_the_last_holder() -> None:
    pool = BlockPool(num_blocks=9, block_size=2)
    pool.admit("a", chain_of([1] * 6, 2))
    assert not pool.reset()
    pool.finish("a")
    assert pool.reset()
    assert pool.lookup(chain_of([1] * 6, 2)) == 0


def test_without_caching_nothing_is_ever_found() -> None:
    pool = BlockPool(num_blocks=9, block_size=2, enable_caching=False)
    for name in ("a", "b"):
        admission = pool.admit(name, chain_of([1] * 6, 2))
        assert admission is not None
        assert admission.cached_tokens == 0
        pool.finish(name)
    assert pool.cached_blocks == 0


def test_misuse_is_refused() -> None:
    pool = BlockPool(num_blocks=9, block_size=2)
    pool.admit("a", chain_of([1, 2, 3], 2))
    with pytest.raises(ValueError, match="holds blocks already"):
        pool.admit("a", chain_of([1], 2))
    with pytest.raises(ValueError, match="block size 3 in a pool of 2"):
        pool.admit("b", chain_of([1], 3))
    with pytest.raises(ValueError, match="at least one token"):
        pool.admit("b", chain_of([], 2))
    with pytest.raises(ValueError, match="budget"):
        pool.admit("b", chain_of([1], 2), token_budget=0)
    with pytest.raises(ValueError, match="slots for 4 tokens"):
        pool.extend("a", 4)
    with pytest.raises(KeyError):
        pool.finish("b")
    with pytest.raises(KeyError):
        pool.extend("b", 1)
    with pytest.raises(ValueError, match="num_blocks"):
        BlockPool(1, 2)
    with pytest.raises(ValueError, match="block_size"):
        BlockPool(9, 0)
