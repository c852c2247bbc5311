"""Walks over a block pool: the same operations for the model and for vLLM's own classes (tests/real/cache_classes.py).

Everything random comes from a seeded `random.Random`, and what happens next depends only on what the pools answered, so
two pools that follow the same rules take the same walk.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Protocol

from cachemodel.block_hashes import HashChain
from cachemodel.block_pool import BlockPool
from cachemodel.releases import PoolRules


@dataclass
class Sequence:
    """A request under way. `computed`: tokens that have slots; `answer`: tokens it is going to sample, at least 1."""

    name: int
    tokens: list[int]
    answer: int
    computed: int = 0
    sampled: int = 0


class Cache(Protocol):
    """A rank's blocks: the model's, vLLM's, or both side by side."""

    def admit(self, sequence: Sequence, budget: int | None) -> int | None:
        """Cached tokens, or None when it must wait. Slots are given for `budget` tokens more (None: for all)."""

    def extend(self, sequence: Sequence, upto: int) -> bool: ...

    def sample(self, sequence: Sequence, token: int) -> None:
        """`token` has been appended to the sequence."""

    def finish(self, sequence: Sequence) -> None: ...

    def reset(self) -> bool: ...

    def evictions(self) -> int: ...


class ModelCache:
    """The model as a `Cache`."""

    def __init__(self, blocks: int, size: int, rules: PoolRules) -> None:
        self.pool = BlockPool(blocks, size, rules=rules)
        self.chains: dict[int, HashChain] = {}

    def admit(self, sequence: Sequence, budget: int | None) -> int | None:
        chain = HashChain(self.pool.block_size)
        chain.extend(sequence.tokens)
        admission = self.pool.admit(sequence.name, chain, budget)
        if admission is None:
            return None
        self.chains[sequence.name] = chain
        return admission.cached_tokens

    def extend(self, sequence: Sequence, upto: int) -> bool:
        return self.pool.extend(sequence.name, upto)

    def sample(self, sequence: Sequence, token: int) -> None:
        self.chains[sequence.name].append(token)

    def finish(self, sequence: Sequence) -> None:
        self.pool.finish(sequence.name)
        del self.chains[sequence.name]

    def reset(self) -> bool:
        return self.pool.reset()

    def evictions(self) -> int:
        return self.pool.evictions


@dataclass
class Outcome:
    """What a walk came to. `refused`: admissions that had to wait; `answers`: what every operation was answered."""

    asked: int = 0
    hits: int = 0
    refused: int = 0
    preempted: int = 0
    evicted: int = 0
    answers: list[str] = field(default_factory=list)

    def note(self, what: str, answer: object) -> None:
        self.answers.append(f"{what}={answer}")

    def document(self) -> dict[str, int | str]:
        return {
            "operations": len(self.answers),
            "asked": self.asked,
            "hits": self.hits,
            "refused": self.refused,
            "preempted": self.preempted,
            "evicted": self.evicted,
            "sha256": hashlib.sha256(";".join(self.answers).encode()).hexdigest(),
        }


def families(seed: int, number: int, longest: int, most_output: int) -> Iterator[Sequence]:
    """Sequences without end that share beginnings of one of `number` texts, up to `longest` tokens."""
    random = Random(seed)
    texts = [[random.randrange(50_000) for _ in range(longest)] for _ in range(number)]
    for name in count():
        text = texts[random.randrange(number)]
        length = random.randrange(1, longest + 1)
        own = random.randrange(0, length + 1)
        tokens = [*text[: length - own], *(random.randrange(50_000, 100_000) for _ in range(own))]
        yield Sequence(name, tokens, random.randrange(1, most_output + 1))


def one_after_another(cache: Cache, sent: Iterator[Sequence], requests: int) -> Outcome:
    """Each request ends before the next begins; each fits the pool."""
    outcome = Outcome()
    for _, sequence in zip(range(requests), sent, strict=False):
        prompt = len(sequence.tokens)
        hits = cache.admit(sequence, None)
        assert hits is not None
        outcome.note("admit", hits)
        outcome.asked += prompt
        outcome.hits += hits
        for number in range(sequence.answer - 1):  # the last sampled token is never computed
            token = 100_000 + number
            sequence.tokens.append(token)
            cache.sample(sequence, token)
            assert cache.extend(sequence, len(sequence.tokens))
        cache.finish(sequence)
    outcome.evicted = cache.evictions()
    return outcome


def crowded(cache: Cache, sent: Iterator[Sequence], requests: int, seed: int, most: int = 6) -> Outcome:
    """Up to `most` requests side by side: prefill in chunks, decoding, aborts, preemptions, now and then a reset."""
    outcome, random = Outcome(), Random(seed)
    running: list[Sequence] = []
    waiting: list[Sequence] = []
    started = 0
    while started < requests or running or waiting:
        draw = random.randrange(100)
        if draw < 30 and len(running) < most and (waiting or started < requests):
            if not waiting:
                waiting.append(next(sent))
                started += 1
            if _admitted(cache, waiting[0], 1 + random.randrange(160), outcome):
                running.append(waiting.pop(0))
        elif running and draw < 97:
            _step(cache, running, waiting, random, outcome)
        elif running:
            _end(cache, running, running[random.randrange(len(running))], "abort", outcome)
        elif draw >= 98:
            outcome.note("reset", cache.reset())
    outcome.evicted = cache.evictions()
    return outcome


def _admitted(cache: Cache, sequence: Sequence, budget: int, outcome: Outcome) -> bool:
    hits = cache.admit(sequence, budget)
    outcome.note("admit", hits)
    if hits is None:
        outcome.refused += 1
        return False
    outcome.asked += len(sequence.tokens)
    outcome.hits += hits
    sequence.computed = min(len(sequence.tokens), hits + budget)
    return True


def _step(
    cache: Cache, running: list[Sequence], waiting: list[Sequence], random: Random, outcome: Outcome
) -> None:
    """The next chunk or the next token of one request; where there is no room the youngest is preempted."""
    sequence = running[random.randrange(len(running))]
    if sequence.computed == len(sequence.tokens):
        sequence.sampled += 1
        if sequence.sampled >= sequence.answer:
            _end(cache, running, sequence, "finish", outcome)
            return
        token = 100_000 + random.randrange(3)
        sequence.tokens.append(token)
        cache.sample(sequence, token)
    upto = min(len(sequence.tokens), sequence.computed + 1 + random.randrange(96))
    if cache.extend(sequence, upto):
        outcome.note("extend", upto)
        sequence.computed = upto
        return
    youngest = running[-1]
    outcome.preempted += 1
    _end(cache, running, youngest, "preempt", outcome)
    youngest.computed = 0
    waiting.insert(0, youngest)


def _end(cache: Cache, running: list[Sequence], sequence: Sequence, why: str, outcome: Outcome) -> None:
    outcome.note(why, sequence.name)
    cache.finish(sequence)
    running.remove(sequence)


SEQUENTIAL_BLOCKS, SEQUENTIAL_SIZE = (66, 100, 150, 250), 32
SEQUENTIAL_REQUESTS = 600


def sequential_walk(cache: Cache) -> Outcome:
    """600 requests of 6 texts one after another, up to 900 tokens and 40 of output."""
    return one_after_another(
        cache, families(seed=1, number=6, longest=900, most_output=40), SEQUENTIAL_REQUESTS
    )


CROWDED_BLOCKS, CROWDED_SIZE = 60, 16


def crowded_walk(cache: Cache) -> Outcome:
    """1,000 requests side by side in a pool of 60 blocks of 16, which is too small for them."""
    return crowded(cache, families(seed=2, number=4, longest=300, most_output=24), 1000, seed=3)
