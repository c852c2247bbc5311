"""Histograms of times, counted piece by piece: gaps between chunks can be more than one wants in memory."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from analyzer.html_report.thinning import Floats, Integers

MOST_BINS, FEWEST_BINS = 40, 8
WIDE_SPREAD = 20
"""When the largest value is this many times the median, bins grow geometrically: else all would be in the first."""
_RESOLUTION = 1e-9
"""Times that differ by less are the same: no clock tells them apart, and bins between them would have no width."""
_DOWN_TO = 1000
"""Geometric bins begin at the median divided by this; the first holds what is shorter, too."""


@dataclass(frozen=True)
class Histogram:
    """`edges` has one more entry than `counts`; every value is counted once."""

    edges: Floats
    counts: Integers
    logarithmic: bool


def histogram(pieces: Iterable[Floats], low: float, median: float, high: float, count: int) -> Histogram:
    """Of `count` values of which these are the smallest, the median and the largest."""
    edges, logarithmic = _edges(low, median, high, min(MOST_BINS, max(FEWEST_BINS, round(2 * count**0.5))))
    counts = np.zeros(edges.size - 1, dtype=np.int64)
    for values in pieces:
        counts += np.histogram(values.clip(edges[0], edges[-1]), edges)[0]
    return Histogram(edges, counts, logarithmic)


def is_wide(median: float, high: float) -> bool:
    return high > WIDE_SPREAD * median > 0


def _edges(low: float, median: float, high: float, bins: int) -> tuple[Floats, bool]:
    if high - low < _RESOLUTION * max(1.0, high):
        return np.array([low * 0.95, max(high * 1.05, low * 0.95 + 1e-3)]), False
    if is_wide(median, high):
        return np.geomspace(max(low, median / _DOWN_TO, _RESOLUTION), high, bins + 1), True
    return np.linspace(low, high, bins + 1), False
