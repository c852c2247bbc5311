"""Cold plans whose lanes' rates fall seldom and little (see `generator.plan.cold` for the terms).

**Following the line.** A lane follows the straight line of a rate: each request wants the hits that bring its lane up
to the line. It raises the watermark when what it wants is no less than the watermark, or less by no more than `early`
blocks: then the hits that the raise forces are those it wanted. With lengths that rise, the watermark is always just
large enough for the requests that come, and rates hardly ever fall. Near the largest rate that can be reached the last
requests have to find all that can be found at all, so from some place on every chance to raise is taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from cachemodel.watermark import Integers, requests_by_lane
from generator.plan.trajectory import fall_depths

Rates = tuple[Fraction, ...]
"""Of each lane the rate of its line, in blocks per token."""
EARLY = (0, 1, 2, 3, 4, 6, 8)
"""Blocks by which a raise may come before its time."""
ALWAYS_FROM = (0, 1, 2, 3, 4, 8)
"""Where every chance to raise is taken: requests per lane before the place that decides how high the rate must rise."""
_NO_FALL = 1e-14


def follow_the_line(
    input_tokens: list[int],
    capacities: list[int],
    lane: list[int],
    rates: Rates,
    early: int,
    always_from: int,
) -> list[int]:
    """Levels of raises (-1: none) of lanes that follow `rates`, one of each lane. One pass."""
    watermark, hits, seen = [0] * len(rates), [0] * len(rates), [0] * len(rates)
    levels = []
    for position, (tokens, cap, number) in enumerate(zip(input_tokens, capacities, lane, strict=True)):
        seen[number] += tokens
        current = watermark[number]
        line = rates[number].numerator * seen[number] // rates[number].denominator
        wanted = min(max(line - hits[number], 0), cap)
        if cap > current and (wanted >= current - early or position >= always_from):
            levels.append(cap)
            watermark[number] = cap
            hits[number] += current
        else:
            levels.append(-1)
            hits[number] += min(wanted, current)
    return levels


def line_policies(
    input_tokens: Integers, capacities: Integers, lane: Integers, *, lines: list[Rates], decisive: int
) -> Iterator[list[int]]:
    """Levels of many sets of raises, the plainest first.

    `decisive` is the request after which all hits that are possible are needed.
    """
    columns = input_tokens.tolist(), capacities.tolist(), lane.tolist()
    lanes = int(lane.max()) + 1
    starts = [max(0, decisive - back * lanes + after) for back in ALWAYS_FROM for after in (0, 1)]
    for always_from in (lane.size, *starts):
        for rates in dict.fromkeys(lines):
            for early in EARLY:
                yield follow_the_line(*columns, rates, early, always_from)


@dataclass(frozen=True)
class SharedPlan:
    """Shared blocks per request and the hits that they give. `name`: the strategy that it comes from."""

    name: str
    prefix: Integers
    hit: Integers


def unevenness(plan: SharedPlan, input_tokens: Integers, lane: Integers) -> tuple[float, int]:
    """What plans are compared by: few falls of the lanes' rates, and small ones. 0 where none is beyond rounding."""
    parts = requests_by_lane(lane)
    depths = np.concatenate([fall_depths(plan.hit[part], input_tokens[part]) for part in parts])
    deep = depths[depths > _NO_FALL]
    return (deep.size * float(deep.max()), int(deep.size)) if deep.size else (0.0, 0)
