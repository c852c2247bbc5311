"""Sharing for cold mode: an exact hit total, no overshoot where any exact plan has none, lanes that converge.

**What can be chosen.** A request with capacity c in a lane whose watermark is w either *hits* any number of blocks up to
min(c, w), or *raises* the watermark to some v in (w, c], which makes it hit exactly w. So a plan is a set of raises; the
hits between them are free within bounds lo <= hit <= hi (lo = hi = w at a raise, 0 and min(c, w) elsewhere).

**What raises cost.** With A_i the forced hits up to request i (the sum of lo), P_i the hits still possible behind it
(the sum of hi) and D the wanted total, cumulative hits H_i can be chosen anywhere between max(A_i, D - P_i) and what the
ceilings leave. A plan without overshoot exists for these raises exactly when max(A_i, D - P_i) <= D * C_i / C_N for every
i (C = cumulative input tokens). Raising more lifts P but also A. No set of raises has a larger P than raising at every
chance, which gives a lower bound of the overshoot for all plans.

**How raises are found.** A family of policies, each one pass: raise at every chance; only once; when the watermark
grows by a given share and the forced hits stay below the ceiling; or at every chance up to a limit, which reaches any
total that can be reached at all. If a lane's rate falls with the best of them, or the cumulative rate rises above the
target, each lane is planned for itself, and lanes that follow a line are tried (`generator.plan.smoothing`), as many as
a bounded effort allows. If the best of all does not meet the lower bound, a search over raises and their levels runs;
while it need not drop states it decides exactly. Of the plans with the least overshoot the one whose lanes' rates fall
least is taken.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, product

import numpy as np

from cachemodel.watermark import Integers, requests_by_lane, watermarks
from generator.plan.raise_search import search_raises
from generator.plan.smoothing import SharedPlan, line_policies, unevenness

SMOOTHING_EFFORT = 50_000
"""Requests that are looked at to find raises that follow the line, over all sets of raises."""
LEAST_TRIED = 4
"""Sets of such raises that are tried of a plan with very many requests as well."""
GROWTH_SHARES = (float("inf"), 1.0, 0.5, 0.25, 0.1, 0.0)


@dataclass(frozen=True)
class ColdProblem:
    """Columns in the order of sending; lanes are numbered from 0 without gaps."""

    input_tokens: Integers
    capacities: Integers
    lane: Integers
    hit_blocks: int


@dataclass(frozen=True)
class Raises:
    """`level[i]` is the watermark that request i raises its lane to, or -1 when it raises nothing."""

    name: str
    level: list[int]


@dataclass(frozen=True)
class Bounds:
    """Per request: watermark before it, least and most hits; `possible` = hits still possible behind it."""

    raises: Raises
    low: list[int]
    high: list[int]
    forced: list[int]
    possible: list[int]


@dataclass(frozen=True)
class ColdPlan:
    prefix: Integers
    strategy: str
    smallest_overshoot_proven: bool


def solve(problem: ColdProblem, *, search: bool = True, effort: int = SMOOTHING_EFFORT) -> ColdPlan:
    """Shared blocks per request whose watermark hits add up to `hit_blocks`, which must be reachable.

    `effort` bounds how many plans are tried for smoothness; without `search` the least overshoot may be missed.
    """
    if problem.hit_blocks == 0:
        return ColdPlan(np.zeros_like(problem.input_tokens), "no_sharing", True)
    seen = np.cumsum(problem.input_tokens).tolist()
    every_chance = bounds_of(problem, raise_when(problem, seen, growth=0.0, affordable=False))
    target = Fraction(problem.hit_blocks, seen[-1])
    least = max(needed_rate(problem, seen, [0] * len(seen), every_chance.possible), target)
    known = with_rates(problem, seen, (every_chance, *policies(problem, seen)))
    if min(rate for rate, _ in known) == target:
        winner, hits = smoothest(problem, seen, least_of(known))
        if fall_size(problem, hits)[0] == 0:
            return ColdPlan(shared(winner, hits).prefix, winner.raises.name, True)
    alone = lanes_alone(problem, effort)
    if alone is not None and stays_below(alone, seen, target) and is_smooth(problem, alone):
        return ColdPlan(alone.prefix, alone.name, True)
    for rate, bounds in line_following(problem, seen, every_chance, target, least, effort):
        known.append((rate, bounds))
        for plan in distributed(problem, seen, [bounds]) if rate == target else ():
            if is_smooth(problem, plan):
                return ColdPlan(plan.prefix, plan.name, True)
    best = min(rate for rate, _ in known)
    proven = best <= least
    if not proven and search:
        found = search_raises(
            problem.input_tokens,
            problem.capacities,
            problem.lane,
            problem.hit_blocks,
            known_rate=best,
            least_rate=least,
        )
        proven = found.exhaustive
        if found.level is not None:
            searched = bounds_of(problem, Raises("searched", found.level))
            best = needed_rate(problem, seen, searched.forced, searched.possible)
            known.append((best, searched))
    plans = distributed(problem, seen, least_of(known))
    if alone is not None and stays_below(alone, seen, best):
        plans.append(alone)
    plan = min(plans, key=lambda plan: unevenness(plan, problem.input_tokens, problem.lane))
    return ColdPlan(plan.prefix, plan.name, proven)


def ceiling_of(seen: list[int], rate: Fraction) -> Integers:
    """Most cumulative hits at each request under a rate."""
    return np.array([rate.numerator * tokens // rate.denominator for tokens in seen], dtype=np.int64)


def stays_below(plan: SharedPlan, seen: list[int], rate: Fraction) -> bool:
    return bool((np.cumsum(plan.hit) <= ceiling_of(seen, rate)).all())


def is_smooth(problem: ColdProblem, plan: SharedPlan) -> bool:
    """Whether no lane's rate falls by more than a block of rounding."""
    return unevenness(plan, problem.input_tokens, problem.lane)[1] == 0


def with_rates(
    problem: ColdProblem, seen: list[int], bounds: Iterable[Bounds]
) -> list[tuple[Fraction, Bounds]]:
    """Those that reach the total, with the highest point of the cumulative rate that they need."""
    return [
        (needed_rate(problem, seen, one.forced, one.possible), one) for one in bounds if reaches(problem, one)
    ]


def lanes_alone(problem: ColdProblem, effort: int) -> SharedPlan | None:
    """Each lane planned for itself, hits and all; None where there is but one."""
    parts = requests_by_lane(problem.lane)
    if len(parts) == 1:
        return None
    prefix = np.zeros_like(problem.input_tokens)
    for part, share in zip(parts, _own_shares(problem)[0], strict=True):
        alone = np.zeros(part.size, dtype=np.int64)
        lane = ColdProblem(problem.input_tokens[part], problem.capacities[part], alone, share)
        prefix[part] = solve(lane, search=False, effort=effort // len(parts)).prefix
    return SharedPlan("lane_by_lane", prefix, watermarks(prefix, problem.lane).hit)


def least_of(known: list[tuple[Fraction, Bounds]]) -> list[Bounds]:
    """Those that need the lowest highest point of the cumulative rate."""
    best = min(rate for rate, _ in known)
    return [bounds for rate, bounds in known if rate == best]


def line_following(
    problem: ColdProblem,
    seen: list[int],
    every_chance: Bounds,
    target: Fraction,
    least: Fraction,
    effort: int,
) -> Iterator[tuple[Fraction, Bounds]]:
    """Raises of lanes that follow a line (`generator.plan.smoothing`), with the rate that they need.

    The line of all lanes is the target's, or that of the highest rate that is needed anyway; or each lane has its own.
    """
    lanes = int(problem.lane.max()) + 1
    own = [Fraction(share, tokens) for share, tokens in zip(*_own_shares(problem), strict=True)]
    needed = [
        (problem.hit_blocks - rest) / tokens for rest, tokens in zip(every_chance.possible, seen, strict=True)
    ]
    levels = line_policies(
        problem.input_tokens,
        problem.capacities,
        problem.lane,
        lines=[(target,) * lanes, tuple(own), (least,) * lanes],
        decisive=int(np.argmax(needed)),
    )
    tried: set[tuple[int, ...]] = set()
    for level in islice(levels, max(LEAST_TRIED, effort // len(seen))):
        if tuple(level) not in tried:
            tried.add(tuple(level))
            yield from with_rates(problem, seen, [bounds_of(problem, Raises("follow_the_line", level))])


def shared(bounds: Bounds, hits: list[int]) -> SharedPlan:
    prefix = [max(level, hit) for level, hit in zip(bounds.raises.level, hits, strict=True)]
    return SharedPlan(bounds.raises.name, np.array(prefix, dtype=np.int64), np.array(hits, dtype=np.int64))


def distributed(problem: ColdProblem, seen: list[int], candidates: list[Bounds]) -> list[SharedPlan]:
    """Each of these sets of raises with its hits distributed in each of the ways there are."""
    return [
        shared(bounds, distribute(problem, seen, bounds))
        for bounds, distribute in product(candidates, (from_the_end, from_the_start))
    ]


def policies(problem: ColdProblem, seen: list[int]) -> Iterator[Bounds]:
    """Candidate sets of raises: one policy for all lanes, then for each lane the one that suits it best."""
    for growth in GROWTH_SHARES:
        yield bounds_of(problem, raise_when(problem, seen, growth=growth, affordable=True))
    yield bounds_of(problem, raise_up_to_a_limit(problem))
    if int(problem.lane.max()) > 0:
        yield bounds_of(problem, lane_by_lane(problem))


def lane_by_lane(problem: ColdProblem) -> Raises:
    """Each lane planned for itself, with its share of the hits and its own straight line as the ceiling."""
    parts = requests_by_lane(problem.lane)
    levels = np.full(problem.lane.size, -1, dtype=np.int64)
    for part, share in zip(parts, _own_shares(problem)[0], strict=True):
        alone = np.zeros(part.size, dtype=np.int64)
        lane = ColdProblem(problem.input_tokens[part], problem.capacities[part], alone, share)
        seen = np.cumsum(lane.input_tokens).tolist()
        every_chance = bounds_of(lane, raise_when(lane, seen, growth=0.0, affordable=False))
        bounds = [b for b in (every_chance, *policies(lane, seen)) if reaches(lane, b)]
        rates = [
            max(needed_rate(lane, seen, b.forced, b.possible), Fraction(share, seen[-1])) for b in bounds
        ]
        best = min(rates)
        winner, _ = smoothest(lane, seen, [b for b, rate in zip(bounds, rates, strict=True) if rate == best])
        levels[part] = winner.raises.level
    return Raises("lane_by_lane", levels.tolist())


def raise_when(problem: ColdProblem, seen: list[int], *, growth: float, affordable: bool) -> Raises:
    """Raise to the full capacity when that makes the watermark grow by more than the share `growth`.

    With `affordable` only while the forced hits, over all lanes, stay below the target's line.
    """
    watermark = [0] * (int(problem.lane.max()) + 1)
    levels = [-1] * len(seen)
    forced = 0
    wanted, total = problem.hit_blocks, seen[-1]
    for position, (lane, cap) in enumerate(
        zip(problem.lane.tolist(), problem.capacities.tolist(), strict=True)
    ):
        current = watermark[lane]
        if cap <= current or (current and cap <= current * (1 + growth)):
            continue
        if affordable and (forced + current) * total > wanted * seen[position]:
            continue
        forced += current
        watermark[lane] = levels[position] = cap
    name = "raise_at_every_chance"
    if affordable:
        name = "raise_once" if growth == float("inf") else f"raise_by_{growth:g}"
    return Raises(name, levels)


def raise_up_to_a_limit(problem: ColdProblem) -> Raises:
    """Raise at every chance, but to no more than the least limit that allows the wanted total.

    These raises always reach it. With T(L) the most hits under a limit L, they allow T(L), and T(L) >= D. What they force
    are the levels of all raises of a lane but its last. Where the last one reaches L, the others are at most L - 1, so
    they could all be shared under the limit L - 1; where it does not, L - 1 is no limit to that lane. So no more than
    T(L - 1) is forced, and T(L - 1) < D.
    """
    parts = requests_by_lane(problem.lane)

    def most(limit: int) -> int:
        within = np.minimum(problem.capacities, limit)
        return int(within.sum()) - sum(int(within[part].max()) for part in parts)

    too_low, limit = -1, int(problem.capacities.max())
    while limit - too_low > 1:
        middle = (limit + too_low) // 2
        if most(middle) >= problem.hit_blocks:
            limit = middle
        else:
            too_low = middle
    watermark = [0] * len(parts)
    levels = [-1] * problem.lane.size
    for position, (lane, cap) in enumerate(
        zip(problem.lane.tolist(), problem.capacities.tolist(), strict=True)
    ):
        level = min(cap, limit)
        if level > watermark[lane]:
            watermark[lane] = levels[position] = level
    return Raises("raise_up_to_a_limit", levels)


def bounds_of(problem: ColdProblem, raises: Raises) -> Bounds:
    watermark = [0] * (int(problem.lane.max()) + 1)
    low, high = [], []
    for lane, cap, level in zip(
        problem.lane.tolist(), problem.capacities.tolist(), raises.level, strict=True
    ):
        current = watermark[lane]
        if level >= 0:
            low.append(current)
            high.append(current)
            watermark[lane] = level
        else:
            low.append(0)
            high.append(min(cap, current))
    forced = np.cumsum(low)
    possible = int(np.sum(high)) - np.cumsum(high)
    return Bounds(raises, low, high, forced.tolist(), possible.tolist())


def reaches(problem: ColdProblem, bounds: Bounds) -> bool:
    """Whether the wanted total lies between what these raises force and what they allow."""
    return bounds.forced[-1] <= problem.hit_blocks <= bounds.possible[0] + bounds.high[0]


def needed_rate(problem: ColdProblem, seen: list[int], forced: list[int], possible: list[int]) -> Fraction:
    """The least height (blocks per token) of the cumulative rate's highest point, over all choices of hits."""
    numerator, denominator = 0, 1
    for tokens, least, rest in zip(seen, forced, possible, strict=True):
        needed = max(least, problem.hit_blocks - rest)
        if needed * denominator > numerator * tokens:
            numerator, denominator = needed, tokens
    return Fraction(numerator, denominator)


def smoothest(problem: ColdProblem, seen: list[int], candidates: list[Bounds]) -> tuple[Bounds, list[int]]:
    """Of several sets of raises, the one whose hits make the lanes' rates fall least, and those hits."""
    best: tuple[tuple[float, float], Bounds, list[int]] | None = None
    for bounds, distribute in product(candidates, (from_the_end, from_the_start)):
        hits = distribute(problem, seen, bounds)
        score = fall_size(problem, hits)
        if best is None or score < best[0]:
            best = (score, bounds, hits)
        if score[0] == 0:
            break
    if best is None:
        raise ValueError("no candidates")
    return best[1], best[2]


def from_the_end(problem: ColdProblem, seen: list[int], bounds: Bounds) -> list[int]:
    """Hits per request, adding up to the wanted total, under the target's line wherever these raises allow it.

    Planned from the last request to the first: a lane's rate does not fall at a request when the hits before it are at
    most in proportion to those behind it, so each request takes at least its proportional part of its lane's hits.
    """
    most_before = []  # most cumulative hits that are possible under the ceilings
    reached = 0
    for ceiling, high in zip(_ceilings(problem, seen, bounds), bounds.high, strict=True):
        reached = min(reached + high, ceiling)
        most_before.append(reached)
    hits_left, tokens_left = _lane_shares(problem, bounds)
    hits = [0] * len(seen)
    lane_of, input_tokens = problem.lane.tolist(), problem.input_tokens.tolist()
    for position in range(len(seen) - 1, -1, -1):
        lane, tokens = lane_of[position], input_tokens[position]
        before = tokens_left[lane] - tokens
        ideal = hits_left[lane] - hits_left[lane] * before // tokens_left[lane]
        ceiling, forced = (most_before[position - 1], bounds.forced[position - 1]) if position else (0, 0)
        least = max(bounds.low[position], reached - ceiling)
        most = min(bounds.high[position], reached - forced)
        hit = min(max(ideal, least), most)
        hits[position] = hit
        reached -= hit
        hits_left[lane] -= hit
        tokens_left[lane] = before
    return hits


def from_the_start(problem: ColdProblem, seen: list[int], bounds: Bounds) -> list[int]:
    """Hits as in `from_the_end`, but each lane follows its own straight line from its first request on.

    Smoother where lanes have to catch up with their first, compulsory miss at the same time.
    """
    wanted = problem.hit_blocks
    ceiling = _ceilings(problem, seen, bounds)
    for position in range(len(seen) - 2, -1, -1):  # leave room for the hits that later raises force
        ceiling[position] = min(ceiling[position], ceiling[position + 1] - bounds.low[position + 1])
    shares, lane_tokens = _lane_shares(problem, bounds)
    lane_hits, lane_seen = [0] * len(shares), [0] * len(shares)
    hits: list[int] = []
    reached = 0
    for position, (lane, tokens) in enumerate(
        zip(problem.lane.tolist(), problem.input_tokens.tolist(), strict=True)
    ):
        lane_seen[lane] += tokens
        ideal = shares[lane] * lane_seen[lane] // lane_tokens[lane] - lane_hits[lane]
        least = max(bounds.low[position], wanted - bounds.possible[position] - reached)
        most = min(bounds.high[position], ceiling[position] - reached)
        hit = min(max(ideal, least), most)
        hits.append(hit)
        reached += hit
        lane_hits[lane] += hit
    return hits


def _ceilings(problem: ColdProblem, seen: list[int], bounds: Bounds) -> list[int]:
    """Most cumulative hits: the target's line, and where these raises need more, exactly what they need."""
    wanted, total = problem.hit_blocks, seen[-1]
    return [
        max(wanted * tokens // total, forced, wanted - rest)
        for tokens, forced, rest in zip(seen, bounds.forced, bounds.possible, strict=True)
    ]


def _own_shares(problem: ColdProblem) -> tuple[list[int], list[int]]:
    """Hit blocks and input tokens of each lane, whatever is raised."""
    parts = requests_by_lane(problem.lane)
    capacities = [problem.capacities[part] for part in parts]
    tokens = [int(problem.input_tokens[part].sum()) for part in parts]
    most = [int(caps.sum() - caps.max()) for caps in capacities]
    return proportional_shares(problem.hit_blocks, tokens=tokens, least=[0] * len(parts), most=most), tokens


def _lane_shares(problem: ColdProblem, bounds: Bounds) -> tuple[list[int], list[int]]:
    """Hit blocks and input tokens of each lane."""
    lanes = int(problem.lane.max()) + 1

    def per_lane(column: list[int] | Integers) -> list[int]:
        sums: list[int] = np.bincount(problem.lane, weights=column, minlength=lanes).astype(np.int64).tolist()
        return sums

    tokens = per_lane(problem.input_tokens)
    least, most = per_lane(bounds.low), per_lane(bounds.high)
    return proportional_shares(problem.hit_blocks, tokens=tokens, least=least, most=most), tokens


def proportional_shares(wanted: int, *, tokens: list[int], least: list[int], most: list[int]) -> list[int]:
    """`wanted` hits split over lanes in proportion to their tokens, between what each lane must and can take."""
    shares = [0] * len(tokens)
    open_lanes = list(range(len(tokens)))
    left = wanted
    while open_lanes:  # water-filling: lanes at a bound leave, the others share what is left
        open_tokens = sum(tokens[lane] for lane in open_lanes)
        fixed = {lane: most[lane] for lane in open_lanes if left * tokens[lane] >= most[lane] * open_tokens}
        if not fixed:
            fixed = {
                lane: least[lane] for lane in open_lanes if left * tokens[lane] < least[lane] * open_tokens
            }
        if not fixed:
            break
        for lane, share in fixed.items():
            shares[lane] = share
            left -= share
        open_lanes = [lane for lane in open_lanes if lane not in fixed]
    if open_lanes:
        open_tokens = sum(tokens[lane] for lane in open_lanes)
        for lane in open_lanes:
            shares[lane] = left * tokens[lane] // open_tokens
        largest_remainder = sorted(open_lanes, key=lambda lane: -(left * tokens[lane] % open_tokens))
        for lane in largest_remainder[: left - sum(shares[lane] for lane in open_lanes)]:
            shares[lane] += 1
    return shares


def fall_size(problem: ColdProblem, hits: list[int]) -> tuple[float, float]:
    """How far the lanes' rates fall (blocks per token, summed): beyond one block of rounding, and at all."""
    beyond = at_all = 0.0
    hit = np.array(hits)
    for part in requests_by_lane(problem.lane):
        lane_hits, lane_seen = np.cumsum(hit[part]), np.cumsum(problem.input_tokens[part])
        highest = np.maximum.accumulate((lane_hits - 1) / lane_seen)
        depth = highest[:-1] - (lane_hits[1:] + 1) / lane_seen[1:]
        beyond += float(depth[depth > 0].sum())
        step = np.diff(lane_hits / lane_seen)
        at_all -= float(step[step < -1e-15].sum())
    return beyond, at_all
