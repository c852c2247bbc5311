"""Seeds: the tokens that make a request's first non-shared block its own.

A seed is written with safe tokens only: tokens whose text survives decoding and encoding at the start of a text,
behind natural text, before natural text, and beside one another. Seeds are numbered: item i of a run gets the number
(a*i + b) mod M, a permutation of 0..M-1, and the number's digits in base S (S safe tokens) are the first tokens of the
seed. Two items can therefore never share a seed, whatever the number of items; M is kept below 2**53, so the
number survives every JSON reader.
"""

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prompts.corpus import EncodedCorpus
from prompts.tokenizer import Tokenizer

LARGEST_NUMBER = 2**53

_SCAN = 2048  # vocabulary ids looked at in one go
_ROW = 16  # tokens beside one another in one trial
_CLEAN_ROUNDS = 4
_MOST_PAIRED = 256  # tokens tried in all pairs, where tokens do not live together


@dataclass(frozen=True)
class SeedSpace:
    """All seeds of a run: a numbered, duplicate-free set. `tokens(number, length)` gives a seed back from its number.

    tokens: the safe token ids, S of them. digits: how many tokens of a seed spell its number. capacity: M, how many
    different seeds there are.
    """

    safe_tokens: tuple[int, ...]
    digits: int
    capacity: int
    multiplier: int
    offset: int

    @classmethod
    def over(cls, safe_tokens: Sequence[int], free_tokens: int, seed: int) -> "SeedSpace":
        """The space of seeds whose first `free_tokens` tokens must tell them apart."""
        base = len(safe_tokens)
        digits = 1
        while digits < free_tokens and base**digits < LARGEST_NUMBER and base > 1:
            digits += 1
        capacity = min(base**digits, LARGEST_NUMBER)
        rng = random.Random(seed)
        multiplier = rng.randrange(1, capacity) if capacity > 1 else 1
        while math.gcd(multiplier, capacity) != 1:
            multiplier = rng.randrange(1, capacity)
        return cls(
            tuple(safe_tokens), digits, capacity, multiplier, rng.randrange(capacity) if capacity else 0
        )

    def number(self, index: int) -> int:
        """The seed number of item `index` (0 <= index < capacity); different for every index."""
        if not 0 <= index < self.capacity:
            raise ValueError(f"seed index {index} outside 0..{self.capacity - 1}")
        return (self.multiplier * index + self.offset) % self.capacity

    def tokens(self, number: int, length: int) -> list[int]:
        """The seed with this number: its digits, most significant first, then tokens drawn from SHA-256 of it."""
        base = len(self.safe_tokens)
        digits = []
        rest = number
        for _ in range(self.digits):
            rest, digit = divmod(rest, base)
            digits.append(self.safe_tokens[digit])
        seed = digits[::-1][:length]
        if len(seed) < length:
            filler = self._filler(number)
            seed += [next(filler) for _ in range(length - len(seed))]
        return seed

    def _filler(self, number: int) -> Iterator[int]:
        counter = 0
        while True:
            digest = hashlib.sha256(f"{number}:{counter}".encode()).digest()
            for start in range(0, len(digest), 4):
                yield self.safe_tokens[
                    int.from_bytes(digest[start : start + 4], "big") % len(self.safe_tokens)
                ]
            counter += 1


def find_safe_tokens(tokenizer: Tokenizer, corpus: EncodedCorpus, wanted: int, enough: int) -> list[int]:
    """Up to `wanted` safe tokens, words before everything else; fewer than `enough` when the vocabulary has no more.

    The vocabulary is scanned from id 0 and no further than needed. What passes alone is then tried beside one another,
    and what does not live together is dropped.
    """
    contexts = _contexts(tokenizer, corpus)
    special = set(tokenizer.special_token_ids)
    words: list[int] = []
    others: list[int] = []
    reserve = wanted + wanted // 4 + 16  # some are lost beside one another
    for start in range(0, tokenizer.vocab_size, _SCAN):
        ids = [i for i in range(start, min(start + _SCAN, tokenizer.vocab_size)) if i not in special]
        found, rest = _words_and_others(tokenizer, ids)
        words += _alone(tokenizer, found, contexts)
        others += rest
        if len(words) >= reserve:
            words = _living_together(tokenizer, words)
            if len(words) >= enough:
                return words[:wanted]
    words = _living_together(tokenizer, words)
    if len(words) < enough:
        words = _living_together(tokenizer, words + _alone(tokenizer, others, contexts))
    return words[:wanted]


def _words_and_others(tokenizer: Tokenizer, ids: list[int]) -> tuple[list[int], list[int]]:
    """The ids that are a word of some length with a space in front, and the other ids that are visible at all."""
    once = tokenizer.decode_batch([[token] for token in ids])
    twice = tokenizer.decode_batch([[token, token] for token in ids])
    words: list[int] = []
    others: list[int] = []
    for token, text, double in zip(ids, once, twice, strict=True):
        tail = double[len(text) :]
        if len(tail) > 3 and tail[0] == " " and tail[1:].isalpha():
            words.append(token)
        elif text.strip():
            others.append(token)
    return words, others


def _contexts(tokenizer: Tokenizer, corpus: EncodedCorpus) -> list[tuple[list[int], list[int]]]:
    """What a token is tried between: (ids before, ids after), natural texts that survive themselves."""
    samples = corpus.samples(2)
    pairs: list[tuple[list[int], list[int]]] = []
    if samples:
        before, after = corpus.first(samples[0]).tolist(), corpus.following(samples[-1]).tolist()
        pairs = [(before[-8:], after[:8]), (before[:5], []), ([], after[:8])]
    survive = _survive(tokenizer, [left + right for left, right in pairs])
    return [pair for pair, ok in zip(pairs, survive, strict=True) if ok]


def _alone(tokenizer: Tokenizer, ids: list[int], contexts: list[tuple[list[int], list[int]]]) -> list[int]:
    """The ids that survive by themselves, twice in a row, and in each context."""
    survivors = ids
    for left, right, times in (([], [], 1), ([], [], 2), *((left, right, 1) for left, right in contexts)):
        rows = [[*left, *[token] * times, *right] for token in survivors]
        survivors = [token for token, ok in zip(survivors, _survive(tokenizer, rows), strict=True) if ok]
    return survivors


def _survive(tokenizer: Tokenizer, rows: list[list[int]]) -> list[bool]:
    encoded = tokenizer.encode_batch(tokenizer.decode_batch(rows))
    return [again == row for again, row in zip(encoded, rows, strict=True)]


def _living_together(tokenizer: Tokenizer, tokens: list[int]) -> list[int]:
    """Drop tokens until the rest survives in random rows; the order of the rest is kept.

    In most vocabularies a word with its space survives beside any other, and a few rows show it. Where rows break,
    tokens reach across words, and every pair is tried.
    """
    kept = tokens
    rng = random.Random(len(tokens))
    for _ in range(_CLEAN_ROUNDS):
        mixed = rng.sample(kept, len(kept))
        rows = [mixed[i : i + _ROW] for i in range(0, len(mixed), _ROW)]
        if not all(_survive(tokenizer, rows)):
            return _compatible(tokenizer, kept[:_MOST_PAIRED])
    return kept


def _compatible(tokenizer: Tokenizer, tokens: list[int]) -> list[int]:
    """Tokens that survive pairwise, in either order: those with the most trouble are dropped first."""
    trouble: dict[int, set[int]] = {token: set() for token in tokens}
    for first in tokens:
        for second, ok in zip(
            tokens, _survive(tokenizer, [[first, second] for second in tokens]), strict=True
        ):
            if not ok:
                trouble[first].add(second)
                trouble[second].add(first)
    while trouble:
        worst = max(trouble, key=lambda token: (len(trouble[token]), token))
        if not trouble[worst]:
            break
        for other in trouble.pop(worst):
            if other in trouble:
                trouble[other].discard(worst)
    return [token for token in tokens if token in trouble]


def first_difference(wanted: Sequence[int], found: Sequence[int]) -> int:
    """The first position at which two different id sequences differ (the shorter one's end counts as different)."""
    return next(
        (i for i, (a, b) in enumerate(zip(wanted, found, strict=False)) if a != b),
        min(len(wanted), len(found)),
    )
