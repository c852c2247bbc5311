"""Whose turn it is: rows in final order, one at a time per lane, shared by all worker processes of a load.

AISBench divides a large concurrency among processes, each with slots of its own. Rows belong to none of them: whoever
has a free slot takes the earliest row that may start, under one lock. So the order is the same for any number of
processes, and a row that waits for its lane occupies nothing.

The rows that may start are the bits of a set in a file that all processes map: a bit for every row, above that a bit
for every word that is not 0, and so on up to a single word. The earliest is found, taken out and put in by touching one
word of each level, four for 320,000 rows: what a row costs does not grow with the load. `after` holds for every row the
next of its lane (-1: none), which is put in when the row is over. It cannot lock up: the earliest row that is not over
has nothing before it that is not over, so it is either taken, and ends, or is in the set.
"""

from collections.abc import Hashable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

_AFTER, _READY, _LEFT = "turns.after", "turns.ready", "turns.left"
_BITS = 64
_WORD = np.dtype("<u8")


def write_turns(folder: Path, lanes: Iterable[Hashable | None]) -> None:
    """A fresh start for rows whose lanes are these, in final order; None: no lane."""
    last: dict[Hashable, int] = {}
    after: list[int] = []
    first: list[bool] = []
    for row, lane in enumerate(lanes):
        after.append(-1)
        first.append(lane is None or lane not in last)
        if lane is not None:
            if lane in last:
                after[last[lane]] = row
            last[lane] = row
    np.array(after, dtype=np.int64).tofile(folder / _AFTER)
    np.array([len(after)], dtype=np.int64).tofile(folder / _LEFT)
    members = np.array(first, dtype=bool)
    with (folder / _READY).open("wb") as file:
        for words in _level_sizes(len(first)):
            bits = np.zeros(words * _BITS, dtype=bool)
            bits[: members.size] = members
            level = np.packbits(bits, bitorder="little").view(_WORD)
            file.write(level.tobytes())
            members = level != 0


def _level_sizes(rows: int) -> list[int]:
    """Words of each level, from a bit per row up to the single word at the top."""
    sizes = [max(1, -(-rows // _BITS))]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // _BITS))
    return sizes


class Turns:
    """The turns of a load as one of its processes sees them. `lock` is the one that all of them share."""

    def __init__(self, folder: Path, lock: AbstractContextManager[Any]) -> None:
        self._after = np.fromfile(folder / _AFTER, dtype=np.int64)
        # As plain arrays: reading a word of a memmap itself takes several times as long.
        self._left = np.memmap(folder / _LEFT, dtype=np.int64, mode="r+").view(np.ndarray)
        words = np.memmap(folder / _READY, dtype=_WORD, mode="r+").view(np.ndarray)
        self._levels = np.split(words, np.cumsum(_level_sizes(self._after.size))[:-1])
        self._lock = lock

    def take(self) -> int | None:
        """The earliest row that may start, which is then nobody else's; None: none now, or none left."""
        with self._lock:
            row = 0
            for level in reversed(self._levels):
                word = int(level[row])
                if not word:  # only the top can be 0: the words below are those that are not
                    return None
                row = row * _BITS + (word & -word).bit_length() - 1
            self._take_out(row)
            self._left[0] -= 1
            return row

    def end(self, row: int) -> None:
        """The row is over, however it ended; the next of its lane may start."""
        following = int(self._after[row])
        if following >= 0:
            with self._lock:
                self._put_in(following)

    @property
    def all_taken(self) -> bool:
        """Nothing is left to start."""
        return not self._left[0]

    def _take_out(self, place: int) -> None:
        for level in self._levels:
            at, bit = divmod(place, _BITS)
            word = int(level[at]) & ~(1 << bit)
            level[at] = word
            if word:
                return
            place = at

    def _put_in(self, place: int) -> None:
        for level in self._levels:
            at, bit = divmod(place, _BITS)
            word = int(level[at])
            level[at] = word | 1 << bit
            if word:
                return
            place = at
