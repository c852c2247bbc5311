"""Searching for the raises with the smallest overshoot (see `generator.plan.cold` for the terms).

For a given highest rate the question "can the total be reached below this ceiling?" is decided request by request.
A state is the watermark of every lane, the forced hits A, and the most hits B that are possible so far under the
ceiling; of two states with the same watermarks the one with smaller A and larger B is at least as good. The lower
bound is asked first; then the rate is lowered to just below what the last answer needed until the answer is no.

While the number of states stays within the budget nothing is dropped and the answer is exact. Beyond it, the states
nearest to the goal are kept, lanes are raised to their full capacity only, and a "no" proves nothing.
"""

from dataclasses import dataclass
from fractions import Fraction

from cachemodel.watermark import Integers

BUDGET = 200_000
"""States expanded per plan; well under a second."""


@dataclass(frozen=True)
class SearchResult:
    """`level` as in `cold.Raises`, None when nothing better was found; `exhaustive` when that is proven."""

    level: list[int] | None
    exhaustive: bool


@dataclass(frozen=True, slots=True)
class _State:
    watermarks: tuple[int, ...]
    forced: int
    reached: int
    history: tuple[int, object] | None
    """Linked list of (level or -1, earlier history), newest first."""


def search_raises(
    input_tokens: Integers,
    capacities: Integers,
    lane: Integers,
    hit_blocks: int,
    known_rate: Fraction,
    least_rate: Fraction,
) -> SearchResult:
    """Raises whose needed rate (blocks per token) is below `known_rate`, as small as can be found.

    `least_rate` is a lower bound for every plan; raises that need no more are the end of the search.
    """
    tokens, caps, lanes = input_tokens.tolist(), capacities.tolist(), lane.tolist()
    possible = _possible_behind(caps, lanes)
    seen = 0
    cumulative = [seen := seen + value for value in tokens]
    budget = _Budget(BUDGET)
    ceiling = [least_rate.numerator * c // least_rate.denominator for c in cumulative]
    level = _decide(caps, lanes, ceiling, possible, hit_blocks, budget)
    if level is not None:
        return SearchResult(level, True)
    best: list[int] | None = None
    rate = known_rate
    while rate > least_rate and (budget.left > 0 or not budget.cut):
        # The largest whole numbers below rate * C, and never below the least rate's: strictly better than known.
        ceiling = [
            max(
                -(-rate.numerator * c // rate.denominator) - 1,
                least_rate.numerator * c // least_rate.denominator,
            )
            for c in cumulative
        ]
        level = _decide(caps, lanes, ceiling, possible, hit_blocks, budget)
        if level is None:
            break
        best = level
        rate = _needed(caps, lanes, cumulative, level, hit_blocks)
    return SearchResult(best, not budget.cut)


@dataclass
class _Budget:
    """States that may still be expanded; `cut` once any had to be dropped because of it."""

    left: int
    cut: bool = False


def _possible_behind(caps: list[int], lanes: list[int]) -> list[int]:
    """Upper bound of the hits behind each request, whatever is raised."""
    highest: dict[int, int] = {}
    most = []
    for cap, lane in zip(caps, lanes, strict=True):
        most.append(min(cap, highest.get(lane, 0)))
        highest[lane] = max(cap, highest.get(lane, 0))
    left = sum(most)
    return [left := left - value for value in most]


def _decide(
    caps: list[int], lanes: list[int], ceiling: list[int], possible: list[int], wanted: int, budget: _Budget
) -> list[int] | None:
    """Raises that reach `wanted` with cumulative hits never above `ceiling`, or None."""
    width = max(16, BUDGET // (4 * len(caps)))
    states = [_State((0,) * (max(lanes) + 1), 0, 0, None)]
    for position, (cap, lane, limit) in enumerate(zip(caps, lanes, ceiling, strict=True)):
        following: dict[tuple[int, ...], list[_State]] = {}
        for state in states:
            current = state.watermarks[lane]
            reached = min(limit, state.reached + min(cap, current))
            if reached + possible[position] < wanted:
                continue
            if state.forced <= limit:
                _keep(following, _State(state.watermarks, state.forced, reached, (-1, state.history)))
            if cap > current and state.forced + current <= limit:
                budget.left -= cap - current
                if budget.left < 0:
                    budget.cut = True
                for level in (cap,) if budget.cut else range(current + 1, cap + 1):
                    raised = (*state.watermarks[:lane], level, *state.watermarks[lane + 1 :])
                    _keep(following, _State(raised, state.forced + current, reached, (level, state.history)))
        states = [state for kept in following.values() for state in kept]
        if len(states) > width:
            budget.cut = True
            states.sort(key=lambda s: (-s.reached, -sum(s.watermarks), s.forced))
            del states[width:]
    winner = next((state for state in states if state.reached >= wanted), None)
    return None if winner is None else _levels(winner)


def _keep(following: dict[tuple[int, ...], list[_State]], state: _State) -> None:
    """Add `state` unless one with the same watermarks is at least as good; drop those that it makes needless."""
    same = following.setdefault(state.watermarks, [])
    if any(other.forced <= state.forced and other.reached >= state.reached for other in same):
        return
    same[:] = [o for o in same if not (state.forced <= o.forced and state.reached >= o.reached)]
    same.append(state)


def _levels(state: _State) -> list[int]:
    levels: list[int] = []
    history: object = state.history
    while isinstance(history, tuple):
        level, history = history
        levels.append(level)
    return levels[::-1]


def _needed(
    caps: list[int], lanes: list[int], cumulative: list[int], levels: list[int], wanted: int
) -> Fraction:
    """The highest point that these raises need (the formula of `cold.needed_rate`, from levels)."""
    watermark: dict[int, int] = {}
    low, high = [], []
    for cap, lane, level in zip(caps, lanes, levels, strict=True):
        current = watermark.get(lane, 0)
        low.append(current if level >= 0 else 0)
        high.append(current if level >= 0 else min(cap, current))
        if level >= 0:
            watermark[lane] = level
    rate, forced, rest = Fraction(0), 0, sum(high)
    for tokens, least, most in zip(cumulative, low, high, strict=True):
        forced += least
        rest -= most
        rate = max(rate, Fraction(max(forced, wanted - rest), tokens))
    return rate
