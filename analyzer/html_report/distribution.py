"""Times as distributions: quantiles and histograms, also of more values than one wants in memory."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from analyzer.html_report.thinning import Floats, Integers

QUANTILES = (0.5, 0.9, 0.95, 0.99)
BINS = 40
WIDE_SPREAD = 20
"""When the largest value is this many times the median, bins grow geometrically: else all would be in the first."""
_PER_DECADE = 1000
_SHORTEST, _LONGEST = 1e-6, 1e5


@dataclass(frozen=True)
class Distribution:
    """Seconds. `edges` has one more entry than `counts`. `exact` False: quantiles are rounded to 0.12 %."""

    count: int
    mean: float
    shortest: float
    longest: float
    quantiles: dict[float, float]
    edges: Floats
    counts: Integers
    logarithmic: bool
    exact: bool = True


def distribution(values: Floats) -> Distribution | None:
    """Of finite values; None when there are none."""
    if not values.size:
        return None
    low, high = float(values.min()), float(values.max())
    quantiles = {q: float(np.quantile(values, q)) for q in QUANTILES}
    edges, logarithmic = _edges(low, quantiles[0.5], high)
    return Distribution(
        count=int(values.size),
        mean=float(values.mean()),
        shortest=low,
        longest=high,
        quantiles=quantiles,
        edges=edges,
        counts=np.histogram(values, edges)[0],
        logarithmic=logarithmic,
    )


def streamed_distribution(pieces: Iterable[Floats]) -> Distribution | None:
    """As `distribution`, in memory that does not grow with the number of values.

    They are counted in 1000 bins per decade; a quantile is the middle of its bin, which is at most 0.12 % away.
    """
    fine = np.geomspace(
        _SHORTEST, _LONGEST, _PER_DECADE * round(np.log10(_LONGEST / _SHORTEST)) + 1, dtype=np.float64
    )
    counts = np.zeros(fine.size + 1, dtype=np.int64)
    total, low, high = 0.0, np.inf, -np.inf
    for values in pieces:
        if values.size:
            counts += np.bincount(np.searchsorted(fine, values, side="right"), minlength=counts.size)
            total += float(values.sum())
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    count = int(counts.sum())
    if not count:
        return None
    # What is below or above the bins has a place of its own: the shortest and the longest value.
    middles = np.concatenate([[low], np.sqrt(fine[:-1] * fine[1:]), [high]]).clip(low, high)
    reached = np.cumsum(counts)
    quantiles = {q: float(middles[np.searchsorted(reached, max(1, np.ceil(q * count)))]) for q in QUANTILES}
    edges, logarithmic = _edges(low, quantiles[0.5], high)
    return Distribution(
        count=count,
        mean=total / count,
        shortest=low,
        longest=high,
        quantiles=quantiles,
        edges=edges,
        counts=np.histogram(middles, edges, weights=counts)[0].astype(np.int64),
        logarithmic=logarithmic,
        exact=False,
    )


def _edges(low: float, median: float, high: float) -> tuple[Floats, bool]:
    if high <= low:
        return np.array([low * 0.95, max(high * 1.05, low * 0.95 + 1e-6)]), False
    if low > 0 and high > WIDE_SPREAD * median:
        edges = np.geomspace(low, high, BINS + 1)
        edges[0], edges[-1] = low, high  # geomspace may round its ends past the values
        return edges, True
    return np.linspace(low, high, BINS + 1), False
