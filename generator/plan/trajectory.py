"""How smoothly the cumulative hit rate approaches its target (reference 2.9, design section 11).

With h hit blocks and C input tokens up to a request, the rate is r = h * block / C. One block of rounding is allowed
for: r is known to lie in r +- block / C. A *fall* is an interval wholly below an earlier one; an *overshoot* is a rate
above the effective target. Falls are judged in each lane in cold mode and over all requests in warmup mode.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from cachemodel.watermark import Integers, requests_by_lane

TOLERANCE = 1e-12


@dataclass(frozen=True)
class Issue:
    code: Literal["OVERSHOOT", "FALL", "OVERSHOOT_NOT_PROVEN_SMALLEST"]
    message: str


@dataclass(frozen=True)
class Trajectory:
    """Rates are shares of tokens (0.01 is one percentage point)."""

    strategy: str
    status: Literal["PASS", "BEST_EFFORT"]
    largest_overshoot: float
    largest_fall: float
    falls: int
    smallest_overshoot_proven: bool
    issues: tuple[Issue, ...]


def judge(
    strategy: str,
    hit: Integers,
    input_tokens: Integers,
    lane: Integers | None,
    *,
    hit_blocks: int,
    block_size: int,
    proven: bool,
) -> Trajectory:
    """The trajectory of a plan whose requests hit `hit` blocks. `lane` None means warmup mode.

    In cold mode any overshoot counts; in warmup mode cumulative hits are rounded to the nearest block, so only what
    goes beyond that block does.
    """
    seen = np.cumsum(input_tokens)
    rounding = 0 if lane is not None else 1
    above = ((np.cumsum(hit) - rounding) / seen - hit_blocks / int(seen[-1])) * block_size
    overshoot = max(0.0, float(above.max()))
    overshoot = 0.0 if overshoot <= TOLERANCE else overshoot
    parts = [np.arange(hit.size)] if lane is None else requests_by_lane(lane)
    depths = np.concatenate([fall_depths(hit[part], input_tokens[part]) for part in parts]) * block_size
    falls = int((depths > TOLERANCE).sum())
    fall = float(depths.max()) if falls else 0.0
    issues: list[Issue] = []
    if overshoot:
        at = int(above.argmax())
        issues.append(
            Issue(
                "OVERSHOOT",
                f"the cumulative rate is up to {overshoot * 100:.4f} pp above the effective target (at request {at})",
            )
        )
        if not proven:
            issues.append(
                Issue(
                    "OVERSHOOT_NOT_PROVEN_SMALLEST",
                    "a plan with a smaller overshoot may exist; the search was cut",
                )
            )
    if falls:
        where = "over all requests" if lane is None else "within its lane"
        issues.append(
            Issue(
                "FALL", f"the cumulative rate falls {where} at {falls} requests, by up to {fall * 100:.4f} pp"
            )
        )
    return Trajectory(
        strategy=strategy,
        status="BEST_EFFORT" if issues else "PASS",
        largest_overshoot=overshoot,
        largest_fall=fall,
        falls=falls,
        smallest_overshoot_proven=proven,
        issues=tuple(issues),
    )


def fall_depths(hit: Integers, input_tokens: Integers) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """By how much each interval lies below the highest earlier one, in blocks per token; <= 0 where it does not."""
    hits, seen = np.cumsum(hit), np.cumsum(input_tokens)
    highest = np.maximum.accumulate((hits - 1) / seen)
    depth = np.zeros(hit.size)
    depth[1:] = highest[:-1] - (hits[1:] + 1) / seen[1:]
    return depth
