"""Canonical prefixes: the text that the requests of a group share.

A group's prefix is the ids the server puts in front, then records of the group's pool. Its first block differs from
that of every other group, so no two groups share a cache block. A request takes the first p tokens of it (p a multiple
of the block size) and goes on with its own seed; so at every p that is really used the prefix must be safe to cut:
decoded, continued with a seed and encoded again, the ids must be the same. Where the natural text is not safe to cut, a
few tokens around the cut give way to safe ones; these repairs are counted.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from contract.errors import ScenarioError
from prompts.corpus import EncodedCorpus, IntArray
from prompts.seeds import SeedSpace, first_difference
from prompts.tokenizer import Tokenizer

# How much text before and after a cut decides about it. Encoding is local: words, not pages, are merged.
_WINDOW = 48
_AROUND = 8
# Tokens replaced (before, after) a cut that is not safe, the least first.
_REPLACEMENTS = (
    (1, 0),
    (2, 0),
    (1, 1),
    (2, 1),
    (2, 2),
    (3, 0),
    (4, 0),
    (4, 2),
    (4, 4),
    (6, 6),
    (8, 0),
    (8, 8),
)
_VARIANTS = 6  # other safe tokens are tried when the first ones do not fit in
_ROUNDS = 8
# Markers tried for a group whose records begin like those of other groups.
_MARKERS = 32


@dataclass(frozen=True)
class CanonicalPrefix:
    """The prefix of one group: `ids` (int32, leading ids included) and the records it was made of, in order."""

    ids: IntArray
    record_indices: tuple[int, ...]


class PrefixBuilder:
    """Builds prefixes that differ in their first block; `repairs` counts what the natural text needed, by kind."""

    def __init__(
        self, tokenizer: Tokenizer, corpus: EncodedCorpus, seeds: SeedSpace, *, block_size: int
    ) -> None:
        self._tokenizer = tokenizer
        self._corpus = corpus
        self._seeds = seeds
        self._block_size = block_size
        self._leading = len(tokenizer.leading_ids)
        self._probes = self._surviving_probes()
        self.first_blocks: set[bytes] = set()
        self.repairs: Counter[str] = Counter()

    def build(self, name: str, pool: Sequence[int], length: int, cuts: Sequence[int]) -> CanonicalPrefix:
        """The prefix of group `name`: `length` tokens, safe to cut at each of `cuts` (ascending; the last is `length`).

        Every rotation of the pool is tried until the first block is new, then texts that begin with a
        marker. Raises `ScenarioError` when no first block is free, or when the prefix cannot be made to survive.
        """
        if length == 0:
            return CanonicalPrefix(np.empty(0, dtype=np.int32), ())
        if self._block_size <= self._leading and self.first_blocks:
            raise ScenarioError(
                f"tokenizer.block_size: {self._tokenizer.path} puts {self._leading} token(s) in front of every prompt, "
                f"so all groups would share their first block of {self._block_size}; use at least {self._leading + 1}"
            )
        for attempt in range(len(pool) + len(self.first_blocks) + _MARKERS):
            marked = attempt >= len(pool)
            start = attempt % len(pool)
            marker = f"Set {attempt - len(pool) + 1} of {name}." if marked else ""
            beginning, _ = self._natural(pool, start, self._block_size, marker)
            if self._first_block(beginning) in self.first_blocks:
                continue
            natural, used = self._natural(pool, start, length, marker)
            ids, repairs = self._made_safe(name, natural, length, cuts)
            block = self._first_block(ids)
            if block in self.first_blocks:
                continue
            self.first_blocks.add(block)
            self.repairs += repairs
            if marked:
                self.repairs["prefix marker"] += 1
            return CanonicalPrefix(ids, tuple(used))
        raise ScenarioError(
            f"tokenizer.block_size: no first block of {self._block_size} tokens is left for the prefix of {name}; "
            "use a larger block size or other corpus records for this group"
        )

    def _natural(
        self, pool: Sequence[int], start: int, length: int, marker: str
    ) -> tuple[IntArray, list[int]]:
        front = list(self._tokenizer.leading_ids)
        if marker:
            front += self._tokenizer.encode(marker)
        _, used = self._corpus.stream(pool, start, length - len(front), first=not marker)
        # Some more than needed: where the joined text is encoded anew, it may come out shorter.
        stream, _ = self._corpus.stream(pool, start, length + _WINDOW, first=not marker)
        return np.concatenate([np.array(front, dtype=np.int32), stream]), used

    def _first_block(self, ids: IntArray) -> bytes:
        return ids[: self._block_size].tobytes()

    def _made_safe(
        self, name: str, natural: IntArray, length: int, cuts: Sequence[int]
    ) -> tuple[IntArray, Counter[str]]:
        repairs: Counter[str] = Counter()
        ids = natural[:length].copy()
        broken = self._difference(ids)
        if broken is not None:
            again = self._reencoded(natural[self._leading :].tolist())
            if len(again) >= length - self._leading:
                ids[self._leading :] = again[: length - self._leading]
                repairs["prefix encoded anew"] += 1
        for _ in range(_ROUNDS):
            changed = self._repair_cuts(ids, cuts)
            repairs["prefix cut"] += changed
            inside = 0
            for _ in range(16 + length // 16):
                broken = self._difference(ids)
                # The end is a cut, and a prefix is never sent without something behind it.
                if broken is None or broken >= length - 1:
                    break
                ids[max(self._leading, broken - 1) : broken + 2] = self._filler(broken, 3)[
                    : min(length, broken + 2) - max(self._leading, broken - 1)
                ]
                inside += 1
            repairs["prefix inside"] += inside
            if not changed and not inside:
                return ids, +repairs
        place = self._difference(ids)
        if place is None:
            place = next((cut for cut, ok in zip(cuts, self._safe(ids, cuts), strict=True) if not ok), length)
        raise ScenarioError(
            f"the shared prefix of {name} does not survive encoding with {self._tokenizer.path} at token {place}; "
            "choose other corpus records for this group (corpus.selection) or another tokenizer.block_size"
        )

    def _repair_cuts(self, ids: IntArray, cuts: Sequence[int]) -> int:
        """Make the cuts safe in place; returns how many needed it."""
        unsafe = [cut for cut, ok in zip(cuts, self._safe(ids, cuts), strict=True) if not ok]
        for cut in unsafe:
            for attempt, (before, after) in enumerate(_REPLACEMENTS * _VARIANTS):
                start, end = max(self._leading, cut - before), min(len(ids), cut + after)
                kept = ids[start:end].copy()
                ids[start:end] = self._filler(cut + attempt * len(ids), end - start)
                if self._safe(ids, [cut])[0] and self._continues(ids, cut):
                    break
                ids[start:end] = kept
        return len(unsafe)

    def _safe(self, ids: IntArray, cuts: Sequence[int]) -> list[bool]:
        rows, needles = [], []
        for cut in cuts:
            start = max(self._leading, cut - _WINDOW)
            for probe in self._probes:
                rows.append([*ids[start:cut].tolist(), *probe])
                needles.append([*ids[max(start, cut - _AROUND) : cut].tolist(), *probe])
        again = self._tokenizer.encode_batch(self._tokenizer.decode_batch(rows))
        ends = [found[-len(needle) :] == needle for found, needle in zip(again, needles, strict=True)]
        return [ends[i] and ends[i + 1] for i in range(0, len(ends), 2)]

    def _surviving_probes(self) -> list[list[int]]:
        """Two seeds that survive alone (or the first two, when hardly any does); cuts are tried with them."""
        seeds = [
            self._seeds.tokens(self._seeds.number(i), _AROUND) for i in range(min(16, self._seeds.capacity))
        ]
        again = self._tokenizer.encode_batch(self._tokenizer.decode_batch(seeds))
        good = [seed for seed, found in zip(seeds, again, strict=True) if seed == found]
        return [*good, *seeds, *seeds][:2]

    def _continues(self, ids: IntArray, cut: int) -> bool:
        """Whether the prefix survives around the cut when it is not cut there."""
        start = max(self._leading, cut - _WINDOW)
        needle = ids[max(start, cut - 2 * _AROUND) : cut + _AROUND].tolist()
        again = self._reencoded(ids[start : cut + _WINDOW].tolist())
        return any(again[i : i + len(needle)] == needle for i in range(len(again) - len(needle) + 1))

    def _filler(self, place: int, length: int) -> list[int]:
        return self._seeds.tokens(self._seeds.number(place % self._seeds.capacity), max(length, 1))[:length]

    def _reencoded(self, content: list[int]) -> list[int]:
        return self._tokenizer.encode(self._tokenizer.decode(content))

    def _difference(self, ids: IntArray) -> int | None:
        content = ids[self._leading :].tolist()
        again = self._reencoded(content)
        return None if again == content else self._leading + first_difference(content, again)
