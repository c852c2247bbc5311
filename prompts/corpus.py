"""Corpora: JSON Lines of texts, the records a group draws from, and their token ids, each encoded once.

A record's text is stripped and every run of white space becomes one space. Records are numbered from 0 among the
non-blank lines; `indices` of a scenario mean these numbers. A record's hash is the SHA-256 of its normalised text in
UTF-8.
"""

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import orjson

from contract.errors import ScenarioError
from contract.files import expanded, read_file
from prompts.builtin import word_problems_path
from prompts.tokenizer import Tokenizer

BUILTIN_WORD_PROBLEMS = "builtin:word-problems"

IntArray = np.ndarray[tuple[int], np.dtype[np.int32]]


@dataclass(frozen=True)
class Corpus:
    """The records of one file, normalised, in file order."""

    path: str
    file_sha256: str
    texts: tuple[str, ...]
    sha256: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Selection:
    """Which records a group draws from. `place` is the dotted path of the scenario, for messages; `in_values` says that
    the list of the mode stands there as `values`.

    `random` draws from the whole corpus, `indices` and `question_sha256` from the listed records, `mixed` from the
    indices first and then the hashes.
    """

    mode: Literal["random", "indices", "question_sha256", "mixed"] = "random"
    indices: tuple[int, ...] = ()
    question_sha256: tuple[str, ...] = ()
    place: str = "corpus.selection"
    in_values: bool = False

    def place_of(self, name: str, index: int) -> str:
        """Where the scenario has an entry of the list `name`."""
        return f"{self.place}.{'values' if self.in_values else name}[{index}]"


MOST_NAMED = 5
LONG_TEXT = 1 << 16
"""Characters from which on a text is taken piece by piece: a list of its words takes twenty times its memory, and a
tokenizer's result two hundred times."""


def normalise(text: str) -> str:
    """Strip, and make one space of every run of white space."""
    parts: list[str] = []
    gap = False
    for start in range(0, len(text), LONG_TEXT):
        piece = text[start : start + LONG_TEXT]
        words = " ".join(piece.split())
        if words:
            if parts and (gap or piece[0].isspace()):
                parts.append(" ")
            parts.append(words)
        gap = piece[-1].isspace()
    return "".join(parts)


def load_corpus(path: str | Path, field: str) -> Corpus:
    """Read a JSON Lines corpus (UTF-8, with or without a byte order mark; blank lines are skipped).

    Raises `ScenarioError` naming file and line when a line is not a JSON object, lacks the field, or the field is not a
    text with something in it; and when the file cannot be read or has no record.
    """
    name = str(path)
    file = expanded(str(path))
    if name.startswith("builtin:"):
        if name != BUILTIN_WORD_PROBLEMS:
            raise ScenarioError(
                f"corpus.path: there is no {name}; the built-in corpus is {BUILTIN_WORD_PROBLEMS}"
            )
        file = word_problems_path()
    try:
        content = read_file(file)
    except OSError as error:
        raise ScenarioError(f"corpus.path: {name} cannot be read ({error.strerror or error})") from error
    texts = [
        _record_text(line, f"{name}:{number}", field)
        for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1)
        if line.strip()
    ]
    if not texts:
        raise ScenarioError(
            f"corpus.path: {name} is empty; it needs one JSON object per line with the field {field!r}"
        )
    return Corpus(
        path=name,
        file_sha256=hashlib.sha256(content).hexdigest(),
        texts=tuple(texts),
        sha256=tuple(hashlib.sha256(text.encode()).hexdigest() for text in texts),
    )


def _record_text(line: bytes, place: str, field: str) -> str:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ScenarioError(
            f"{place}: not valid JSON ({error}); a corpus has one JSON object per line"
        ) from error
    if not isinstance(record, dict):
        raise ScenarioError(f"{place}: a JSON object is needed, found {type(record).__name__}")
    if field not in record:
        found = ", ".join(sorted(record)) or "none"
        raise ScenarioError(f"{place}: the field {field!r} is missing (fields: {found}); see corpus.field")
    value = record[field]
    if not isinstance(value, str) or not value.strip():
        raise ScenarioError(
            f"{place}: the field {field!r} must be a text with something in it, found {value!r:.80}"
        )
    return normalise(value)


def select_records(corpus: Corpus, selection: Selection, group_size: int, seed: int) -> list[int]:
    """The record numbers a group draws from: max(2, group size) of them.

    `random`: full shuffles of the corpus by `random.Random(seed)`, one after another, cut to size. The other modes
    repeat the listed records cyclically. Raises `ScenarioError` for an index outside the corpus, for a hash that
    matches no record or several, and for an empty list.
    """
    size = max(2, group_size)
    if selection.mode == "random":
        rng = random.Random(seed)
        pool: list[int] = []
        while len(pool) < size:
            shuffled = list(range(len(corpus)))
            rng.shuffle(shuffled)
            pool += shuffled
        return pool[:size]
    listed: list[int] = []
    if selection.mode in ("indices", "mixed"):
        listed += _checked_indices(corpus, selection)
    if selection.mode in ("question_sha256", "mixed"):
        listed += _found_hashes(corpus, selection)
    if not listed:
        raise ScenarioError(f"{selection.place}: mode {selection.mode} needs at least one record, found none")
    return [listed[i % len(listed)] for i in range(size)]


def _checked_indices(corpus: Corpus, selection: Selection) -> tuple[int, ...]:
    for place, index in enumerate(selection.indices):
        if not 0 <= index < len(corpus):
            raise ScenarioError(
                f"{selection.place_of('indices', place)}: there is no record {index}; "
                f"{corpus.path} has {len(corpus)} (0 to {len(corpus) - 1})"
            )
    return selection.indices


def _found_hashes(corpus: Corpus, selection: Selection) -> list[int]:
    wanted = {digest.lower() for digest in selection.question_sha256}
    found: dict[str, list[int]] = {digest: [] for digest in wanted}
    for index, digest in enumerate(corpus.sha256):
        if digest in wanted:
            found[digest].append(index)
    records: list[int] = []
    for place, digest in enumerate(selection.question_sha256):
        matches = found[digest.lower()]
        if len(matches) != 1:
            what = f"matches records {matches[0]} and {matches[1]}" if matches else "matches no record"
            raise ScenarioError(
                f"{selection.place_of('question_sha256', place)}: {digest} {what} of {corpus.path}; "
                "it must match exactly one"
            )
        records.append(matches[0])
    return records


class EncodedCorpus:
    """Token ids of a corpus, encoded on first use and kept.

    Every record has two forms: `first` stands at the start of a text; `following` stands behind another record, one
    space between them. How a tokenizer wants that space written (in front of the text or not at all, when it
    sets its own mark) is found out by trying on a few records.

    A record is usable when its ids survive decoding and encoding and hold no special token. Where they do not survive,
    the ids that its decoded text gives are tried. An unusable record (it has a character outside the vocabulary, say, or
    the text of an end-of-text token) is left out of every prompt and listed in `unusable`.
    """

    _EMPTY = np.empty(0, dtype=np.int32)
    _RECORDS = 256
    # Characters, and of a batch also pieces: what a tokenizer needs at a time grows with them.
    _PIECE, _BATCH = 1 << 13, 1 << 15

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer) -> None:
        self.corpus = corpus
        self.unusable: set[int] = set()
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.special_token_ids)
        self._first: dict[int, IntArray] = {}
        self._following: dict[int, IntArray] = {}
        self._space = self._space_in_front()

    def first(self, index: int) -> IntArray:
        """Ids of the record at the start of a text; empty when it is not usable."""
        if index not in self._first:
            self._first[index] = self._encode([self.corpus.texts[index]], front="")[0]
        return self._first[index]

    def following(self, index: int) -> IntArray:
        """Ids of the record behind other text, the space included; empty when it is not usable."""
        if index not in self._following:
            self.load([index])
        return self._following[index]

    def load(self, indices: Iterable[int]) -> None:
        """Encode the `following` form of all these records at once, where that has not happened."""
        missing = [index for index in dict.fromkeys(indices) if index not in self._following]
        for start in range(0, len(missing), self._RECORDS):
            batch = missing[start : start + self._RECORDS]
            texts = [self.corpus.texts[index] for index in batch]
            for index, ids in zip(batch, self._encode(texts, front=self._space), strict=True):
                self._following[index] = ids
                if not len(ids):
                    self.unusable.add(index)

    def _encode(self, texts: Sequence[str], *, front: str) -> list[IntArray]:
        """Ids of each text behind `front`; empty for one that is not usable.

        A long text is encoded in pieces that are cut at spaces, as if they were records one behind the other.
        """
        pieces = [(number, piece) for number, text in enumerate(texts) for piece in self._pieces(text, front)]
        found: list[list[IntArray]] = [[] for _ in texts]
        for batch in self._batches(pieces):
            encoded = self._tokenizer.encode_batch([piece for _, piece in batch])
            for (number, _), ids in zip(batch, self._surviving(encoded), strict=True):
                found[number].append(np.array(ids, dtype=np.int32))
        return [
            np.concatenate(parts) if parts and all(part.size for part in parts) else self._EMPTY
            for parts in found
        ]

    def _pieces(self, text: str, front: str) -> Iterator[str]:
        start = 0
        while start < len(text):
            end, gap = len(text), 0
            if end - start > self._PIECE:
                space = text.rfind(" ", start + 1, start + self._PIECE)
                end, gap = (space, 1) if space > 0 else (start + self._PIECE, 0)
            yield front + text[start:end]
            start = end + gap
            front = self._space if gap else ""

    def _batches(self, pieces: Sequence[tuple[int, str]]) -> Iterator[Sequence[tuple[int, str]]]:
        start = characters = 0
        for end, (_, piece) in enumerate(pieces):
            if end > start and characters + len(piece) > self._BATCH:
                yield pieces[start:end]
                start, characters = end, 0
            characters += len(piece)
        if start < len(pieces):
            yield pieces[start:]

    def stream(
        self, pool: Sequence[int], start: int, length: int, *, first: bool
    ) -> tuple[IntArray, list[int]]:
        """At least `length` ids of the pool's records from `start` on, cyclically, and the records used.

        Of a very long record no more is taken than is needed and then some.

        Raises `ScenarioError` when no record of the pool is usable.
        """
        pieces: list[IntArray] = []
        used: list[int] = []
        total = 0
        place = start
        while total < length:
            index = pool[place % len(pool)]
            piece = self.first(index) if first and not used else self.following(index)
            if len(piece):
                used.append(index)
                pieces.append(piece[: length - total + LONG_TEXT])
                total += len(pieces[-1])
            place += 1
            if place - start >= len(pool) and not used:
                raise self._none_usable(pool)
        return (np.concatenate(pieces) if pieces else self._EMPTY), used

    def _none_usable(self, pool: Sequence[int]) -> ScenarioError:
        """Which records are left out, and what in them the tokenizer takes for its own tokens."""
        some = pool[:MOST_NAMED]
        ids = self._tokenizer.encode_batch([self.corpus.texts[index] for index in some])
        special = sorted({token for row in ids for token in row if token in self._special})
        names = self._tokenizer.decode_batch([[token] for token in special[:MOST_NAMED]])
        marks = ", ".join(map(repr, names))
        records = ", ".join(map(str, some)) + (
            f" and {len(pool) - len(some)} more" if len(pool) > len(some) else ""
        )
        why = (
            f"they hold {marks}, which {self._tokenizer.path} reads as special tokens and not as text"
            if marks
            else f"{self._tokenizer.path} does not give their text back"
        )
        return ScenarioError(
            f"corpus.path: no selected record of {self.corpus.path} can be used (records {records} are left out): {why}; "
            "take the markup out, choose other records, or another tokenizer"
        )

    def samples(self, count: int) -> list[int]:
        """The first `count` usable records (fewer when there are not as many)."""
        found: list[int] = []
        for start in range(0, len(self.corpus), 8 * count):
            batch = range(start, min(start + 8 * count, len(self.corpus)))
            self.load(batch)
            found += [index for index in batch if index not in self.unusable and len(self.first(index))][
                :count
            ]
            if len(found) >= count:
                break
        return found[:count]

    def _surviving(self, batch: list[list[int]]) -> list[list[int]]:
        again = self._reencode(batch)
        changed = [i for i, ids in enumerate(again) if ids != batch[i]]
        result = list(batch)
        for i, stable in zip(changed, self._reencode([again[i] for i in changed]), strict=True):
            result[i] = stable if stable == again[i] else []
        return [ids if self._special.isdisjoint(ids) else [] for ids in result]

    def _reencode(self, batch: list[list[int]]) -> list[list[int]]:
        return self._tokenizer.encode_batch(self._tokenizer.decode_batch(batch))

    def _space_in_front(self) -> str:
        texts = [text[:1000] for text in self.corpus.texts[:9]]
        pairs = list(zip(texts, texts[1:] or texts, strict=False))
        firsts = self._tokenizer.encode_batch([first for first, _ in pairs])
        wanted = self._tokenizer.encode_batch([f"{first} {second}" for first, second in pairs])

        def hits(space: str) -> int:
            seconds = self._tokenizer.encode_batch([space + second for _, second in pairs])
            return sum(a + b == both for a, b, both in zip(firsts, seconds, wanted, strict=True))

        return max((" ", ""), key=hits)
