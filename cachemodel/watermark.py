"""The watermark model: the theory that data is built for (reference 2.6, 2.7).

A lane is one prefix on one rank. Its watermark is how many blocks of the prefix are cached there. A request that shares
`p` blocks hits `min(p, watermark)` and raises the watermark to at least `p`. There is no eviction, no pool and no
concurrency in this model; `cachemodel.block_pool` has those.

All quantities are whole blocks unless a name says tokens. Arrays are in the order of sending.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Watermarks:
    """Per request: watermark before it, blocks it hits, watermark after it."""

    before: Integers
    hit: Integers
    after: Integers


def watermarks(prefix: Integers, lane: Integers, primed: Integers | None = None) -> Watermarks:
    """What each request hits, given its shared `prefix` and its `lane` (any integers >= 0).

    `primed[lane]` is the watermark that a warmup has left; None means that every lane starts empty.
    """
    before = np.zeros_like(prefix)
    for requests in requests_by_lane(lane):
        start = 0 if primed is None else primed[lane[requests[0]]]
        before[requests[0]] = start
        before[requests[1:]] = np.maximum(np.maximum.accumulate(prefix[requests[:-1]]), start)
    return Watermarks(before, np.minimum(prefix, before), np.maximum(prefix, before))


def requests_by_lane(lane: Integers) -> list[Integers]:
    """Positions of each lane's requests, ascending; lanes in order of their number, empty lanes left out."""
    order = np.argsort(lane, kind="stable")
    starts = np.flatnonzero(np.diff(lane[order])) + 1
    return [part for part in np.split(order, starts) if part.size]


def capacity(input_tokens: Integers, minimum_non_shared: int, block_size: int) -> Integers:
    """Blocks that each request can share at most."""
    return np.maximum(0, (input_tokens - minimum_non_shared) // block_size)


def largest_hit(capacities: Integers, lane: Integers | None) -> int:
    """Most blocks that can hit in total: all capacities, less the largest of each lane, which has to be computed once.

    With `lane` None every prefix has been primed, so nothing is lost. The closed form holds in every order: hits of a
    lane telescope to `sum(prefix) - max(prefix)`. Every whole number from 0 to this one is reachable.
    """
    total = int(capacities.sum())
    if lane is None:
        return total
    return total - sum(int(capacities[requests].max()) for requests in requests_by_lane(lane))


@dataclass(frozen=True)
class Target:
    """The reachable hit total nearest to what was asked for."""

    requested_rate: float
    hit_blocks: int
    effective_rate: float
    reachable_max: float
    reachable: bool
    adjusted: bool
    reason: str | None

    reachable_min: float = 0.0


def nearest_target(requested_rate: float, total_tokens: int, largest_blocks: int, block_size: int) -> Target:
    """Of the hit totals on the block grid between 0 and `largest_blocks`, the one nearest in tokens; ties to fewer."""
    wanted = int(total_tokens * requested_rate + 0.5)
    below = wanted // block_size
    candidates = {min(max(blocks, 0), largest_blocks) for blocks in (below, below + 1)}
    hit_blocks = min(candidates, key=lambda blocks: (abs(blocks * block_size - wanted), blocks))
    reachable_max = largest_blocks * block_size / total_tokens
    reachable = requested_rate <= reachable_max
    adjusted = hit_blocks * block_size != wanted
    reason = None
    if not reachable:
        reason = "target exceeds maximum reachable hit rate"
    elif adjusted:
        reason = "block alignment prevents an exact target hit count"
    return Target(
        requested_rate=requested_rate,
        hit_blocks=hit_blocks,
        effective_rate=hit_blocks * block_size / total_tokens,
        reachable_max=reachable_max,
        reachable=reachable,
        adjusted=adjusted,
        reason=reason,
    )
