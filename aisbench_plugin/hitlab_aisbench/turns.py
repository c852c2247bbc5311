"""Whose turn it is: rows in final order, one at a time per lane, shared by all worker processes of a load.

AISBench divides a large concurrency among processes, each with slots of its own. Rows belong to none of them: whoever
has a free slot takes the earliest row that may start, under one lock. So the order is the same for any number of
processes, and a row that waits for its lane occupies nothing.

Two files say it all. `before` holds for every row the row of the same lane that comes before it (-1: none); `state`
holds a byte for every row: waiting, taken or over. It cannot lock up: the earliest row that is not over has nothing
before it that is not over, so it is either taken, and ends, or may be taken.
"""

from collections.abc import Hashable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

WAITING, TAKEN, OVER = 0, 1, 2
_BEFORE, _STATE = "turns.before", "turns.state"


def write_turns(folder: Path, lanes: Iterable[Hashable | None]) -> None:
    """A fresh start for rows whose lanes are these, in final order; None: no lane."""
    last: dict[Hashable, int] = {}
    before = []
    for row, lane in enumerate(lanes):
        before.append(-1 if lane is None else last.get(lane, -1))
        if lane is not None:
            last[lane] = row
    np.array(before, dtype=np.int64).tofile(folder / _BEFORE)
    np.zeros(len(before), dtype=np.uint8).tofile(folder / _STATE)


class Turns:
    """The turns of a load as one of its processes sees them. `lock` is the one that all of them share."""

    def __init__(self, folder: Path, lock: AbstractContextManager[Any]) -> None:
        self._before = np.fromfile(folder / _BEFORE, dtype=np.int64)
        self._state = np.memmap(folder / _STATE, dtype=np.uint8, mode="r+", shape=self._before.shape)
        self._lock = lock
        self._first = 0  # every row in front of it has been taken

    def take(self) -> int | None:
        """The earliest row that may start, which is then nobody else's; None: none now, or none left."""
        with self._lock:
            self._skip_taken()
            state, before = self._state[self._first :], self._before[self._first :]
            free = state == WAITING
            lanes = free & (before >= 0)
            free[lanes] = self._state[before[lanes]] == OVER
            if not free.any():
                return None
            row = self._first + int(free.argmax())
            self._state[row] = TAKEN
            return row

    def end(self, row: int) -> None:
        """The row is over, however it ended; the next of its lane may start."""
        self._state[row] = OVER

    @property
    def all_taken(self) -> bool:
        """Nothing is left to start."""
        self._skip_taken()
        return self._first == len(self._state)

    def _skip_taken(self) -> None:
        """A row is seldom far behind: rows are looked at in pieces, not all of them every time."""
        while self._first < len(self._state):
            waiting = self._state[self._first : self._first + 1024] == WAITING
            if waiting.any():
                self._first += int(waiting.argmax())
                return
            self._first += len(waiting)
