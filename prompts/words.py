"""Texts of an exact number of tokens for benches: words that cost one token each, drawn by a key.

Equal keys give equal texts and different keys different ones, so what is meant to be shared is shared to the token and
what is meant to be unique is unique from its first words on. Texts joined by a space cost what their parts cost.
"""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import orjson

from contract.errors import ScenarioError
from prompts.builtin import word_problems_path

_RECORDS = 1500
_BATCH = 64
_ROW = 16
_ROWS = 32
_FEWEST = 48
# Few are enough to tell texts apart by their first words, and an engine that is asked for each is asked for long.
_WANTED = 128
_OPENERS = 16
_ROUNDS = 12


class Encoder(Protocol):
    """What counts tokens: a tokenizer, or an engine that is asked. Without special tokens around the text."""

    path: str

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...


@dataclass(frozen=True)
class WordList:
    """words: cost one token each behind another word. openers: those that also do at the start of a text."""

    words: tuple[str, ...]
    openers: tuple[str, ...]


def find_words(encoder: Encoder) -> WordList:
    """The most frequent words of the built-in corpus that cost one token each wherever they stand.

    Raises:
        ScenarioError: the vocabulary has too few of them (it knows no words, or its tokens reach across spaces).
    """
    candidates = _candidates()
    anchor = candidates[0]
    (base,) = encoder.encode_batch([anchor])
    words: list[str] = []
    openers: list[str] = []
    for start in range(0, len(candidates), _BATCH):
        batch = candidates[start : start + _BATCH]
        behind = encoder.encode_batch([f"{anchor} {word}" for word in batch])
        found = [word for word, ids in zip(batch, behind, strict=True) if len(ids) == len(base) + 1]
        if len(openers) < _OPENERS:
            alone = encoder.encode_batch(found)
            openers += [word for word, ids in zip(found, alone, strict=True) if len(ids) == 1]
        words += found
        if len(words) >= _WANTED and openers:
            break
    words = _living_together(encoder, words, openers or words)
    if len(words) < _FEWEST:
        raise ScenarioError(
            f"tokenizer {encoder.path}: only {len(words)} words of the built-in list cost one token each, "
            f"{_FEWEST} are needed for texts of an exact length; use another tokenizer"
        )
    kept = set(words)
    return WordList(tuple(words), tuple(word for word in openers if word in kept) or tuple(words))


def _candidates() -> list[str]:
    """Lower-case words of the built-in corpus, the most frequent first."""
    counts: Counter[str] = Counter()
    with word_problems_path().open("rb") as file:
        for line in islice(file, _RECORDS):
            counts.update(re.findall(r"\b[a-z]{3,}\b", orjson.loads(line)["question"]))
    return sorted(counts, key=lambda word: (-counts[word], word))


def _living_together(encoder: Encoder, words: list[str], openers: Sequence[str]) -> list[str]:
    """Without the words of rows that cost more or less than their number."""
    rng = random.Random(len(words))
    rows = [[rng.choice(openers), *rng.choices(words, k=_ROW)] for _ in range(_ROWS if words else 0)]
    (first_costs, *costs) = [
        [len(ids) for ids in encoder.encode_batch([" ".join(row[:end]) for row in rows])]
        for end in (1, _ROW + 1)
    ]
    bad = {
        word
        for row, first, cost in zip(rows, first_costs, costs[0], strict=True)
        if cost != first + _ROW
        for word in row
    }
    return [word for word in words if word not in bad]


class WordTexts:
    """Texts by key, each made once and kept. `seed` makes all of them others.

    Args:
        encoder: counts as the engine does.
    """

    def __init__(self, encoder: Encoder, seed: int, words: WordList | None = None) -> None:
        self._encoder = encoder
        self._seed = seed
        self._words = words or find_words(encoder)
        self._made: dict[tuple[str, int, str], str] = {}

    def text(self, key: str, tokens: int, opening: str = "") -> str:
        """The text of this key with exactly `tokens` tokens. `opening` stands in front, a space behind it, and counts.

        Raises:
            ScenarioError: no text of this length can be made: shorter than the opening, or the tokenizer does not
                count words independently of one another.
        """
        if tokens == 0 and not opening:
            return ""
        place = (key, tokens, opening)
        if place not in self._made:
            self._made[place] = self._make(key, tokens, opening)
        return self._made[place]

    def count(self, text: str) -> int:
        """Tokens of any text by itself."""
        return len(self._encoder.encode_batch([text])[0])

    def _make(self, key: str, tokens: int, opening: str) -> str:
        rng = random.Random(hashlib.sha256(f"{self._seed}:{key}".encode()).digest())
        drawn = [] if opening else [rng.choice(self._words.openers)]
        wanted = tokens - (self.count(opening) if opening else 0)
        for _ in range(_ROUNDS):
            if wanted < 0 or (wanted == 0 and not opening):
                break
            drawn += rng.choices(self._words.words, k=max(0, wanted - len(drawn)))
            text = " ".join([*([opening] if opening else []), *drawn[:wanted]])
            found = self.count(text)
            if found == tokens:
                return text
            wanted += tokens - found
        raise ScenarioError(
            f"a text of {tokens} tokens{f' that begins with {opening!r}' if opening else ''} cannot be made with the "
            f"tokenizer {self._encoder.path}; ask for another length or use another tokenizer"
        )
