"""Cold plans against exhaustive search: exact totals, and never more overshoot than the best plan there is."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cachemodel.watermark import Integers, capacity, largest_hit, watermarks
from generator.plan.cold import SMOOTHING_EFFORT, ColdPlan, ColdProblem, solve
from generator.plan.trajectory import Trajectory, judge

CASE_A = [
    2504, 2150, 3174, 3051, 2962, 2619, 2467, 2404, 3776, 2178,
    2170, 2431, 2943, 3000, 2156, 2862, 3766, 2950, 3887, 3187,
]  # fmt: skip


def column(values: list[int]) -> Integers:
    return np.array(values, dtype=np.int64)


def dense(lanes: list[int]) -> list[int]:
    numbers = {lane: number for number, lane in enumerate(dict.fromkeys(lanes))}
    return [numbers[lane] for lane in lanes]


def highest_rate(hits: list[int], tokens: list[int], hit_blocks: int) -> Fraction:
    """The highest point of the cumulative rate (blocks per token), the target's own included."""
    rates = [Fraction(int(h), int(c)) for h, c in zip(np.cumsum(hits), np.cumsum(tokens), strict=True)]
    return max(*rates, Fraction(hit_blocks, sum(tokens)))


def least_highest_rate(caps: list[int], lanes: list[int], tokens: list[int], hit_blocks: int) -> Fraction:
    """The same, of the best of all plans: tries every prefix of every request."""
    states = {((0,) * (max(lanes) + 1), 0): Fraction(0)}
    seen = 0
    for cap, lane, length in zip(caps, lanes, tokens, strict=True):
        seen += length
        following: dict[tuple[tuple[int, ...], int], Fraction] = {}
        for (marks, hits), rate in states.items():
            for prefix in range(cap + 1):
                reached = hits + min(prefix, marks[lane])
                if reached > hit_blocks:
                    continue
                raised = (*marks[:lane], max(marks[lane], prefix), *marks[lane + 1 :])
                highest = max(rate, Fraction(reached, seen))
                state = (raised, reached)
                if state not in following or highest < following[state]:
                    following[state] = highest
        states = following
    best = min(rate for (_, hits), rate in states.items() if hits == hit_blocks)
    return max(best, Fraction(hit_blocks, sum(tokens)))


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], int]:
    count = draw(st.integers(1, 8))
    block = draw(st.sampled_from([1, 4, 16]))
    lanes = dense(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    tokens = draw(st.lists(st.integers(block, 6 * block + 3), min_size=count, max_size=count))
    if draw(st.booleans()):
        tokens.sort()
    caps = capacity(column(tokens), block, block)
    hit_blocks = draw(st.integers(0, largest_hit(caps, column(lanes))))
    return caps.tolist(), lanes, tokens, hit_blocks


@settings(max_examples=120)
@given(problems())
def test_exact_total_and_smallest_overshoot(problem: tuple[list[int], list[int], list[int], int]) -> None:
    caps, lanes, tokens, hit_blocks = problem
    plan = solve(ColdProblem(column(tokens), column(caps), column(lanes), hit_blocks))
    assert (plan.prefix >= 0).all()
    assert (plan.prefix <= column(caps)).all()
    hits = watermarks(plan.prefix, column(lanes)).hit.tolist()
    assert sum(hits) == hit_blocks
    assert plan.smallest_overshoot_proven
    assert highest_rate(hits, tokens, hit_blocks) == least_highest_rate(caps, lanes, tokens, hit_blocks)


@st.composite
def large_problems(draw: st.DrawFn) -> ColdProblem:
    count = draw(st.integers(1, 120))
    block = draw(st.sampled_from([1, 16, 128]))
    lanes = dense([draw(st.integers(0, 6)) for _ in range(count)])
    tokens = column([draw(st.integers(block, 60 * block)) for _ in range(count)])
    if draw(st.booleans()):
        tokens.sort()
    caps = capacity(tokens, block, block)
    return ColdProblem(tokens, caps, column(lanes), draw(st.integers(0, largest_hit(caps, column(lanes)))))


@settings(max_examples=120)
@given(large_problems(), st.sampled_from([0, 2_000]))
@example(  # the forced hits of raising at every chance are too many, those of raising once allow too few
    ColdProblem(
        column([1, 1, 1, 3, 5, 1, 1, 1, 1, 1, 1, 11]),
        column([0, 0, 0, 2, 4, 0, 0, 0, 0, 0, 0, 10]),
        column([0] * 12),
        5,
    ),
    SMOOTHING_EFFORT,
)
@example(
    ColdProblem(
        column([1, 1, 3, 5, 1, 1, 1, 1, 1, 1, 1, 13]),
        column([0, 0, 2, 4, 0, 0, 0, 0, 0, 0, 0, 12]),
        column([0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1]),
        5,
    ),
    SMOOTHING_EFFORT,
)
def test_large_plans_are_exact_too(problem: ColdProblem, effort: int) -> None:
    assert_exact(problem, effort)


@pytest.mark.deep
@settings(max_examples=2000)
@given(large_problems(), st.sampled_from([0, 2_000]))
def test_many_large_plans_are_exact_too(problem: ColdProblem, effort: int) -> None:
    assert_exact(problem, effort)


def assert_exact(problem: ColdProblem, effort: int) -> None:
    plan = solve(problem, effort=effort)
    assert (plan.prefix >= 0).all()
    assert (plan.prefix <= problem.capacities).all()
    assert int(watermarks(plan.prefix, problem.lane).hit.sum()) == problem.hit_blocks


def solved(
    tokens: list[int], block: int, lanes: list[int], hit_blocks: int
) -> tuple[ColdPlan, Integers, Trajectory]:
    lengths, lane = column(tokens), column(lanes)
    plan = solve(ColdProblem(lengths, capacity(lengths, block, block), lane, hit_blocks))
    hit = watermarks(plan.prefix, lane).hit
    trajectory = judge(
        plan.strategy,
        hit,
        lengths,
        lane,
        hit_blocks=hit_blocks,
        block_size=block,
        proven=plan.smallest_overshoot_proven,
    )
    return plan, np.cumsum(hit) * block / np.cumsum(lengths), trajectory


def assert_climbs_to(rates: Integers, effective: float) -> None:
    assert (np.diff(rates) >= -1e-12).all()
    assert rates.max() <= effective + 1e-12
    assert rates[-1] == pytest.approx(effective, abs=1e-15)


def test_case_a() -> None:
    assert sum(CASE_A) == 56_637
    _, rates, trajectory = solved(CASE_A, 128, [0] * 20, 310)
    assert_climbs_to(rates, 310 * 128 / 56_637)
    assert trajectory.status == "PASS"
    assert trajectory.issues == ()


def test_case_b() -> None:
    plan, rates, trajectory = solved([32] * 8, 4, [0, 1] * 4, 32)
    hits = watermarks(plan.prefix, column([0, 1] * 4)).hit
    assert hits[:2].tolist() == [0, 0]
    assert_climbs_to(rates, 0.5)
    assert trajectory.status == "PASS"


def test_case_c_at_the_maximum() -> None:
    caps = capacity(column(CASE_A), 128, 128)
    assert caps.tolist() == [18, 15, 23, 22, 22, 19, 18, 17, 28, 16, 15, 17, 21, 22, 15, 21, 28, 22, 29, 23]
    assert largest_hit(caps, column([0] * 20)) == 382
    _, rates, _ = solved(CASE_A, 128, [0] * 20, 382)
    assert rates[-1] == 48_896 / 56_637


def test_ascending_lengths_need_low_first_levels() -> None:
    """(5, 10, 10) blocks: 12 hits without overshoot need the first request to share 2 blocks only."""
    caps, tokens = [5, 10, 10], [30, 10, 60]
    best = least_highest_rate(caps, [0, 0, 0], tokens, 12)
    plan = solve(ColdProblem(column(tokens), column(caps), column([0, 0, 0]), 12))
    hits = watermarks(plan.prefix, column([0, 0, 0])).hit.tolist()
    assert highest_rate(hits, tokens, 12) == best


def test_a_fall_and_an_overshoot_are_reported() -> None:
    hit, tokens = column([0, 9, 0, 0]), column([10, 10, 10, 10])
    trajectory = judge("any", hit, tokens, column([0, 0, 0, 0]), hit_blocks=9, block_size=1, proven=False)
    assert trajectory.status == "BEST_EFFORT"
    assert [issue.code for issue in trajectory.issues] == [
        "OVERSHOOT",
        "OVERSHOOT_NOT_PROVEN_SMALLEST",
        "FALL",
    ]
    assert trajectory.largest_overshoot == pytest.approx(9 / 20 - 9 / 40)
    assert trajectory.falls == 2
    # highest earlier interval begins at (9 - 1) / 20, the last one ends at (9 + 1) / 40
    assert trajectory.largest_fall == pytest.approx(8 / 20 - 10 / 40)


def test_one_block_of_rounding_is_no_fall() -> None:
    trajectory = judge(
        "any",
        column([0, 5, 4, 5]),
        column([10, 10, 10, 10]),
        column([0, 0, 0, 0]),
        hit_blocks=14,
        block_size=1,
        proven=True,
    )
    assert trajectory.falls == 0
