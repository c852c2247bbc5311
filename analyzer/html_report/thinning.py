"""Fewer marks than requests, without hiding what matters: a chart has only so many pixels."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def thin_line(x: Floats, y: Floats, columns: int) -> Integers:
    """Positions of the points that draw the same line on `columns` pixels: in each column the first, the lowest, the
    highest and the last (M4 of Jugel et al., VLDB 2014). `x` is sorted; both are finite and of one length.
    """
    if x.size <= 4 * columns:
        return np.arange(x.size)
    column = _cells(x, columns)
    first = np.flatnonzero(np.diff(column, prepend=-1))
    last = np.append(first[1:], x.size) - 1
    by_height = np.lexsort((y, column))
    return np.unique(np.concatenate([first, last, by_height[first], by_height[last]]))


@dataclass(frozen=True)
class Spots:
    """Points of which each stands for all that fall on the same spot. `counts`: how many, itself included."""

    positions: Integers
    counts: Integers


def spots(x: Floats, y: Floats, columns: int, rows: int) -> Spots:
    """One point per occupied cell of a grid: the highest of the cell, and the lowest of all in its cell.

    `x` and `y` are finite and of one length.
    """
    if not x.size:
        return Spots(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    cell = _cells(x, columns) * rows + _cells(y, rows)
    by_height = np.lexsort((y, cell))
    begins = np.flatnonzero(np.diff(cell[by_height], prepend=-1))
    counts = np.diff(np.append(begins, x.size))
    positions = by_height[np.append(begins[1:], x.size) - 1]
    lowest = int(y.argmin())
    own = int(np.searchsorted(cell[by_height[begins]], cell[lowest]))
    if y[positions[own]] < y.max():
        positions[own] = lowest
    elif positions[own] != lowest:
        # Highest and lowest of all share a spot: both are shown.
        positions = np.append(positions, lowest)
        counts = np.append(counts, 1)
        counts[own] -= 1
    return Spots(positions, counts)


def _cells(values: Floats, count: int) -> Integers:
    """The cell, 0 to count - 1, in which each value lies when their range is cut into `count` equal ones."""
    low, high = float(values.min()), float(values.max())
    if high <= low:
        return np.zeros(values.size, dtype=np.int64)
    shares = (values - low) / (high - low)
    return np.minimum((shares * count).astype(np.int64), count - 1)


def runs(flags: Flags, columns: int) -> list[tuple[int, int]]:
    """Stretches of set flags as (first, last) positions; two that are less than a pixel of `columns` apart are one."""
    positions = np.flatnonzero(flags)
    if not positions.size:
        return []
    gap = max(1, flags.size // columns)
    breaks = np.flatnonzero(np.diff(positions) > gap)
    firsts = positions[np.append(0, breaks + 1)]
    lasts = positions[np.append(breaks, positions.size - 1)]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
