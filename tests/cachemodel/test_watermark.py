"""The watermark model against its definition, one request at a time, and the hand-checked vectors of the reference."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachemodel.watermark import Integers, capacity, largest_hit, nearest_target, watermarks


def column(values: list[int]) -> Integers:
    return np.array(values, dtype=np.int64)


def by_definition(prefix: list[int], lane: list[int], primed: dict[int, int]) -> list[tuple[int, int, int]]:
    level = dict(primed)
    rows = []
    for p, name in zip(prefix, lane, strict=True):
        before = level.get(name, 0)
        level[name] = max(before, p)
        rows.append((before, min(p, before), level[name]))
    return rows


requests = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=30)


@given(requests, st.booleans())
def test_watermarks_follow_the_definition(rows: list[tuple[int, int]], warm: bool) -> None:
    prefix, lane = [list(part) for part in zip(*rows, strict=True)]
    primed = {name: name + 2 for name in range(4)} if warm else {}
    marks = watermarks(column(prefix), column(lane), column([primed[n] for n in range(4)]) if warm else None)
    found = list(zip(marks.before.tolist(), marks.hit.tolist(), marks.after.tolist(), strict=True))
    assert found == by_definition(prefix, lane, primed)


@given(requests)
def test_lane_hits_telescope(rows: list[tuple[int, int]]) -> None:
    prefix, lane = [list(part) for part in zip(*rows, strict=True)]
    hits = watermarks(column(prefix), column(lane)).hit
    assert int(hits.sum()) == largest_hit(column(prefix), column(lane))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=5))
def test_largest_hit_is_the_most_that_any_prefixes_reach(rows: list[tuple[int, int]]) -> None:
    caps, lane = [list(part) for part in zip(*rows, strict=True)]
    reached = {
        sum(hit for _, hit, _ in by_definition(list(prefix), lane, {}))
        for prefix in itertools.product(*(range(cap + 1) for cap in caps))
    }
    assert max(reached) == largest_hit(column(caps), column(lane))
    assert reached == set(range(max(reached) + 1)), "every whole number in between is reachable"


@pytest.mark.parametrize(
    ("lengths", "block", "ranks", "blocks", "rate"),
    [
        ([32] * 8, 4, 1, 49, 0.765625),
        ([32] * 8, 4, 2, 42, 0.65625),
        ([64], 16, 1, 0, 0.0),
        ([1024] * 100, 16, 1, 62 * 100 + 37, 0.97453125),
        ([1024] * 100, 16, 2, 63 * 98, 0.9646875),
    ],
)
def test_reachable_maximum_of_reference_8_6(
    lengths: list[int], block: int, ranks: int, blocks: int, rate: float
) -> None:
    tokens = column(lengths)
    caps = capacity(tokens, block, block)
    lane = np.arange(tokens.size) % ranks
    largest = largest_hit(caps, lane)
    assert largest == blocks
    assert largest * block / tokens.sum() == pytest.approx(rate, abs=0)


def test_warmup_target_of_reference_8_6() -> None:
    tokens = column([1024] * 100)
    caps = capacity(tokens, 16, 16)
    assert set(caps.tolist()) == {63}
    target = nearest_target(0.6, 102_400, largest_hit(caps, None), 16)
    assert target.reachable_max == 0.984375
    assert target.hit_blocks == 3840
    assert target.effective_rate == 0.6
    assert not target.adjusted


@pytest.mark.parametrize(
    ("rate", "total", "largest", "block", "blocks", "reachable", "reason"),
    [
        (
            0.5,
            100,
            10,
            16,
            3,
            True,
            "block alignment prevents an exact target hit count",
        ),  # 50 lies nearest to 48
        (
            0.56,
            100,
            10,
            16,
            3,
            True,
            "block alignment prevents an exact target hit count",
        ),  # 56 is between: fewer
        (0.57, 100, 10, 16, 4, True, "block alignment prevents an exact target hit count"),
        (0.9, 100, 4, 16, 4, False, "target exceeds maximum reachable hit rate"),
        (1.0, 64, 0, 16, 0, False, "target exceeds maximum reachable hit rate"),
        (0.0, 64, 3, 16, 0, True, None),
        (0.5, 64, 3, 16, 2, True, None),
    ],
)
def test_nearest_target(
    rate: float, total: int, largest: int, block: int, blocks: int, reachable: bool, reason: str | None
) -> None:
    target = nearest_target(rate, total, largest, block)
    assert (target.hit_blocks, target.reachable, target.reason) == (blocks, reachable, reason)


@given(st.floats(0, 1), st.integers(1, 500), st.integers(0, 40), st.integers(1, 20))
def test_no_reachable_total_is_nearer(rate: float, total: int, largest: int, block: int) -> None:
    target = nearest_target(rate, total, largest, block)
    wanted = int(total * rate + 0.5)
    distance = abs(target.hit_blocks * block - wanted)
    assert 0 <= target.hit_blocks <= largest
    for blocks in range(largest + 1):
        other = abs(blocks * block - wanted)
        assert other > distance or (other == distance and blocks >= target.hit_blocks) or other == distance
        assert other >= distance
