"""The replay against plainer models: one request after another, every possible routing, and a pool of lists."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cachemodel.block_pool import BlockPool
from cachemodel.prediction import PlannedRequest, predict
from cachemodel.replay import Arrival, RankReplay, hits_on_any_rank

BLOCK = 4
# Few tokens and lengths around whole blocks, so that prompts share beginnings.
PROMPT = st.builds(
    lambda family, shared, own: [family] * shared + own,
    st.integers(0, 2),
    st.integers(0, 4 * BLOCK),
    st.lists(st.integers(0, 1), min_size=1, max_size=2 * BLOCK),
)


def replay(prompts, outputs, times, blocks, warm=()):
    replayed = RankReplay(BlockPool(blocks, BLOCK))
    replayed.warm(warm)
    order = sorted(range(len(prompts)), key=lambda at: times[at][0])
    arrivals = [Arrival(at, *times[at], outputs[at]) for at in order]
    hits = {hit.position: hit.tokens for hit in replayed.run(arrivals, prompts)}
    return hits, replayed


@given(st.lists(st.tuples(PROMPT, st.integers(1, 9)), min_size=1, max_size=12), st.integers(10, 30))
def test_one_after_another_it_is_the_sequential_prediction(sent, blocks):
    prompts, outputs = [prompt for prompt, _ in sent], [output for _, output in sent]
    times = [(10 * at, 10 * at + 10) for at in range(len(sent))]
    hits, replayed = replay(prompts, outputs, times, blocks, warm=[prompts[0]])
    planned = [PlannedRequest(prompts[0]), *map(PlannedRequest, prompts, outputs)]
    assert [hits[at] for at in range(len(sent))] == list(predict(planned, BLOCK, blocks))[1:]
    assert not replayed.overlapped


class ListPool:
    """The pool of vllm.md E.10 as plainly as it can be said: a list of free blocks, prefixes as tuples."""

    def __init__(self, blocks):
        self.free = list(range(1, blocks))
        self.content = {}
        self.users = dict.fromkeys(range(blocks), 0)
        self.held = {}

    def find(self, tokens):
        found = []
        for end in range(BLOCK, len(tokens), BLOCK):  # never the last token
            mine = [block for block, kept in self.content.items() if kept == tuple(tokens[:end])]
            if not mine:
                break
            found.append(mine[0])
        return found

    def take(self):
        block = self.free.pop(0)
        self.content.pop(block, None)
        self.users[block] = 1
        return block

    def grow(self, key, tokens):
        blocks = self.held[key][1]
        if -(-len(tokens) // BLOCK) - len(blocks) > len(self.free):
            return
        while len(blocks) < -(-len(tokens) // BLOCK):
            blocks.append(self.take())
        for number in range(len(tokens) // BLOCK):
            self.content.setdefault(blocks[number], tuple(tokens[: (number + 1) * BLOCK]))

    def admit(self, key, tokens):
        found = self.find(tokens)
        idle = [block for block in found if not self.users[block]]
        if -(-len(tokens) // BLOCK) - len(found) > len(self.free) - len(idle):
            return None
        for block in found:
            if block in idle:
                self.free.remove(block)
            self.users[block] += 1
        self.held[key] = (tokens, list(found))
        self.grow(key, tokens)
        return len(found) * BLOCK

    def finish(self, key, output):
        tokens, blocks = self.held[key]
        self.grow(key, [*tokens, *(("answer", key, at) for at in range(output - 1))])
        del self.held[key]
        back = []
        for block in reversed(blocks):
            self.users[block] -= 1
            if not self.users[block]:
                back.append(block)
        self.free = (
            [block for block in back if block not in self.content]
            + self.free
            + [block for block in back if block in self.content]
        )


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(PROMPT, st.integers(1, 9), st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=10
    ),
    st.integers(16, 40),
)
def test_side_by_side_it_is_a_pool_of_lists(sent, blocks):
    prompts, outputs = [item[0] for item in sent], [item[1] for item in sent]
    # Distinct times, and no request so long that it never fits.
    times = [
        (100 * start + at, 100 * (start + length) + 50 + at) for at, (_, _, start, length) in enumerate(sent)
    ]
    hits, _ = replay(prompts, outputs, times, blocks)
    pool, waiting, ends, expected = ListPool(blocks), [], {}, {}

    def admit_waiting(now):
        while waiting:
            cached = pool.admit(waiting[0], prompts[waiting[0]])
            if cached is None:
                return
            at = waiting.pop(0)
            expected[at] = cached
            ends[at] = max(times[at][1], now)

    def finish_until(now):
        while ends and min(ends.values()) <= now:
            at = min(ends, key=lambda key: (ends[key], list(ends).index(key)))
            end = ends.pop(at)
            pool.finish(at, outputs[at])
            admit_waiting(end)

    for at in sorted(range(len(sent)), key=lambda number: times[number][0]):
        finish_until(times[at][0])
        waiting.append(at)
        admit_waiting(times[at][0])
    finish_until(float("inf"))
    assert hits == expected


def test_a_prompt_that_never_fits_is_not_predicted_and_holds_nobody_up():
    hits, _ = replay([[1] * 40, [2] * 8], [1, 1], [(0, 5), (10, 15)], blocks=5)
    assert hits == {0: None, 1: 0}


@given(st.lists(PROMPT, min_size=1, max_size=5), st.lists(PROMPT, max_size=2), st.integers(2, 3))
def test_what_any_rank_hits_is_what_every_routing_hits(prompts, warm, ranks):
    warmups = [[*map(np.array, warm), np.array([90 + rank] * BLOCK)] for rank in range(ranks)]
    hits = list(hits_on_any_rank(range(len(prompts)), prompts, warmups, BLOCK))
    found = [set() for _ in prompts]
    for routing in product(range(ranks), repeat=len(prompts)):
        planned = [PlannedRequest(ids, rank=rank) for rank in range(ranks) for ids in warmups[rank]]
        planned += [PlannedRequest(ids, rank=rank) for ids, rank in zip(prompts, routing, strict=True)]
        for position, tokens in enumerate(list(predict(planned, BLOCK))[-len(prompts) :]):
            found[position].add(tokens)
    for hit in hits:
        possible = found[hit.position]
        assert {hit.tokens} == possible if len(possible) == 1 else hit.tokens is None
