"""One definition of every statistic, for both benches."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MIB = 1 << 20


def percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that at least `share` of all do not exceed. `ordered` ascends."""
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


@dataclass(frozen=True)
class Summary:
    """Statistics of a sample, in the sample's unit. `std` is None for a single value."""

    count: int
    mean: float
    min: float
    max: float
    p50: float
    p90: float
    p99: float
    std: float | None


def summary(values: Sequence[float]) -> Summary | None:
    """None for no values: an empty sample has no statistics."""
    if not values:
        return None
    ordered = sorted(values)
    return Summary(
        count=len(ordered),
        mean=statistics.fmean(ordered),
        min=ordered[0],
        max=ordered[-1],
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        std=statistics.stdev(ordered) if len(ordered) > 1 else None,
    )
