"""Texts of an exact number of tokens for benches: words that cost one token each, drawn by a key.

Equal keys give equal texts and different keys different ones, so what is meant to be shared is shared to the token and
what is meant to be unique is unique from its first words on. Texts joined by a space cost what their parts cost.
"""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
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
_AT_ONCE = 64
"""Texts made in one round: long ones are many ids in memory at a time."""


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
    candidates = frequent_words()
    anchor = candidates[0]
    (base,) = encoder.encode_batch([anchor])
    words: list[str] = []
    openers: list[str] = []
    for start in range(0, len(candidates), _BATCH):
        found = _single(encoder, anchor, len(base), candidates[start : start + _BATCH])
        if len(openers) < _OPENERS:
            alone = encoder.encode_batch(found)
            openers += [word for word, ids in zip(found, alone, strict=True) if len(ids) == 1]
        words += found
        if len(words) >= _WANTED and openers:
            break
    words = _living_together(encoder, words, openers)
    if len(words) < _FEWEST:
        raise ScenarioError(
            f"tokenizer {encoder.path}: only {len(words)} words of the built-in list cost one token each, "
            f"{_FEWEST} are needed for texts of an exact length; use another tokenizer"
        )
    kept = set(words)
    return WordList(tuple(words), tuple(word for word in openers if word in kept) or tuple(words))


def _single(encoder: Encoder, anchor: str, base: int, words: Sequence[str]) -> list[str]:
    """Those of `words` that cost one token behind another word: rows are asked for, and halves of rows that fail."""
    found: set[str] = set()
    rows = [words[start : start + _ROW] for start in range(0, len(words), _ROW)]
    while rows:
        costs = [len(ids) - base for ids in encoder.encode_batch([" ".join([anchor, *row]) for row in rows])]
        wrong = []
        for row, cost in zip(rows, costs, strict=True):
            if cost == len(row):
                found.update(row)
            elif len(row) > 1:
                wrong += [row[: len(row) // 2], row[len(row) // 2 :]]
        rows = wrong
    return [word for word in words if word in found]


@cache
def frequent_words() -> tuple[str, ...]:
    """Lower-case words of the built-in corpus, the most frequent first."""
    counts: Counter[str] = Counter()
    with word_problems_path().open("rb") as file:
        for line in islice(file, _RECORDS):
            counts.update(re.findall(r"\b[a-z]{3,}\b", orjson.loads(line)["question"]))
    return tuple(sorted(counts, key=lambda word: (-counts[word], word)))


def _living_together(encoder: Encoder, words: list[str], openers: Sequence[str]) -> list[str]:
    """Without the words of rows that cost more or less than their number."""
    rng = random.Random(len(words))
    rows = [[rng.choice(openers or words), *rng.choices(words, k=_ROW)] for _ in range(_ROWS if words else 0)]
    costs = [len(ids) for ids in encoder.encode_batch([" ".join(row) for row in rows])]
    # An opener is known to cost one; where there is none, the first word is asked for.
    first = [1] * len(rows) if openers else [len(ids) for ids in encoder.encode_batch([r[0] for r in rows])]
    bad = {
        word
        for row, begin, cost in zip(rows, first, costs, strict=True)
        if cost != begin + _ROW
        for word in row
    }
    return [word for word in words if word not in bad]


Place = tuple[str, int, str]
"""Key, tokens and opening of a text."""


class Texts(Protocol):
    """Texts by key. Equal places give equal texts."""

    def make(self, places: Iterable[Place]) -> None:
        """Make many at once, which takes fewer round trips where an engine counts."""

    def text(self, key: str, tokens: int, opening: str = "") -> str: ...

    def count(self, text: str) -> int: ...


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
            self.make([place])
        return self._made[place]

    def make(self, places: Iterable[Place]) -> None:
        """Make texts ahead, many in one round. Raises ScenarioError as `text` does."""
        wanted = [
            place for place in dict.fromkeys(places) if place not in self._made and place[1:] != (0, "")
        ]
        for start in range(0, len(wanted), _AT_ONCE):
            self._make(wanted[start : start + _AT_ONCE])

    def count(self, text: str) -> int:
        """Tokens of any text by itself."""
        return len(self._encoder.encode_batch([text])[0])

    def _make(self, places: Sequence[Place]) -> None:
        openings = list({opening: None for _, _, opening in places if opening})
        costs = {"": 0}
        if openings:
            counted = self._encoder.encode_batch(openings)
            costs |= {opening: len(ids) for opening, ids in zip(openings, counted, strict=True)}
        drafts = [_Draft(self._seed, place, costs[place[2]], self._words) for place in places]
        for _ in range(_ROUNDS):
            texts = [draft.text() for draft in drafts]
            remaining = []
            for draft, text, ids in zip(drafts, texts, self._encoder.encode_batch(texts), strict=True):
                if len(ids) == draft.tokens and text:
                    self._made[draft.place] = text
                else:
                    draft.correct(len(ids))
                    remaining.append(draft)
            drafts = remaining
            if not drafts:
                return
        raise self._impossible(drafts[0].place)

    def _impossible(self, place: Place) -> ScenarioError:
        _, tokens, opening = place
        return ScenarioError(
            f"a text of {tokens} tokens{f' that begins with {opening!r}' if opening else ''} cannot be made with the "
            f"tokenizer {self._encoder.path}; ask for another length or use another tokenizer"
        )


class _Draft:
    """A text on its way to its length: words are added or left out until the tokenizer counts as many as wanted."""

    def __init__(self, seed: int, place: Place, opening_tokens: int, words: WordList) -> None:
        key, self.tokens, self._opening = place
        self.place = place
        self._words = words
        self._rng = random.Random(hashlib.sha256(f"{seed}:{key}".encode()).digest())
        self._drawn = [] if self._opening else [self._rng.choice(words.openers)]
        self._wanted = self.tokens - opening_tokens

    def text(self) -> str:
        wanted = max(0, self._wanted)
        self._drawn += self._rng.choices(self._words.words, k=max(0, wanted - len(self._drawn)))
        return " ".join([*([self._opening] if self._opening else []), *self._drawn[:wanted]])

    def correct(self, found: int) -> None:
        """The text had `found` tokens."""
        self._wanted += self.tokens - found


class AboutTexts:
    """Texts of about a number of tokens, for an engine whose tokenizer is not at hand.

    Args:
        tokens_per_character: of texts made of these words, as the engine counted them.
    """

    def __init__(self, tokens_per_character: float, seed: int) -> None:
        self._rate = tokens_per_character
        self._seed = seed

    def make(self, places: Iterable[Place]) -> None:
        """Nothing is asked for, so nothing has to be made ahead."""

    def text(self, key: str, tokens: int, opening: str = "") -> str:
        rng = random.Random(hashlib.sha256(f"{self._seed}:{key}".encode()).digest())
        parts = [opening] if opening else []
        left = tokens / self._rate - len(opening)
        vocabulary = frequent_words()[:_WANTED]
        while left > 0:
            word = rng.choice(vocabulary)
            parts.append(word)
            left -= len(word) + 1
        return " ".join(parts)

    def count(self, text: str) -> int:
        return round(len(text) * self._rate)
