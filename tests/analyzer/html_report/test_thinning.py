"""Thinning keeps what a reader looks for: first, last, and every extreme."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.html_report.histogram import histogram
from analyzer.html_report.thinning import runs, spots, thin_line

HEIGHTS = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=400)


@given(HEIGHTS, st.integers(1, 30))
def test_a_thinned_line_has_the_extremes_of_every_column_and_few_points(
    heights: list[float], columns: int
) -> None:
    x, y = np.arange(len(heights), dtype=np.float64), np.array(heights)
    kept = thin_line(x, y, columns)
    assert kept.size <= max(4 * columns, 4)
    assert (np.diff(kept) > 0).all()
    assert {0, len(heights) - 1} <= set(kept.tolist())
    assert y[kept].min() == y.min()
    assert y[kept].max() == y.max()
    # The oracle: column by column, in plain Python.
    by_column: dict[int, list[int]] = {}
    for position in range(len(heights)):
        by_column.setdefault(min(int(position / (len(heights) - 1 or 1) * columns), columns - 1), []).append(
            position
        )
    for members in by_column.values():
        shown = [heights[position] for position in kept.tolist() if position in set(members)]
        assert max(shown) == max(heights[position] for position in members)
        assert min(shown) == min(heights[position] for position in members)


def test_one_odd_request_among_a_million_is_kept() -> None:
    y = np.full(1_000_000, 0.6)
    y[123_456] = 0.1
    kept = thin_line(np.arange(y.size, dtype=np.float64), y, 1000)
    assert 123_456 in kept
    assert kept.size <= 4000


POINTS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1e6)), max_size=300)


@given(POINTS, st.integers(1, 20), st.integers(1, 20))
def test_spots_stand_for_every_point_once(
    points: list[tuple[float, float]], columns: int, height: int
) -> None:
    x, y = (
        np.array(values, dtype=np.float64) for values in (zip(*points, strict=True) if points else ([], []))
    )
    found = spots(x, y, columns, height)
    assert int(found.counts.sum()) == len(points)
    assert (found.counts >= 1).all()
    assert found.positions.size <= columns * height + 1
    assert np.unique(found.positions).size == found.positions.size
    if points:
        assert y[found.positions].max() == y.max()
        assert y[found.positions].min() == y.min()


@given(st.lists(st.booleans(), max_size=200))
def test_runs_are_the_stretches_when_there_is_room(flags: list[bool]) -> None:
    found = runs(np.array(flags, dtype=np.bool_), columns=len(flags) + 1)
    covered = [position for first, last in found for position in range(first, last + 1)]
    assert covered == [position for position, flag in enumerate(flags) if flag]


@given(st.lists(st.booleans(), min_size=1, max_size=200), st.integers(1, 20))
def test_runs_lose_no_flag_and_are_no_more_than_pixels(flags: list[bool], columns: int) -> None:
    found = runs(np.array(flags, dtype=np.bool_), columns)
    covered = {position for first, last in found for position in range(first, last + 1)}
    assert {position for position, flag in enumerate(flags) if flag} <= covered
    assert len(found) <= 2 * columns + 1
    assert all(flags[first] and flags[last] for first, last in found)


@given(st.lists(st.lists(st.floats(0, 1e6), max_size=50), min_size=1, max_size=5))
def test_a_histogram_counts_every_value_once(pieces: list[list[float]]) -> None:
    values = np.array([value for piece in pieces for value in piece], dtype=np.float64)
    if not values.size:
        return
    found = histogram(
        (np.array(piece, dtype=np.float64) for piece in pieces),
        float(values.min()),
        float(np.median(values)),
        float(values.max()),
        values.size,
    )
    assert int(found.counts.sum()) == values.size
    assert (np.diff(found.edges) > 0).all()
    for low, high, count in list(zip(found.edges[:-1], found.edges[1:], found.counts, strict=True))[1:-1]:
        assert count == sum(low <= value < high for value in values.tolist())


def test_a_long_tail_gets_geometric_bins() -> None:
    values = np.concatenate([np.full(1000, 10.0), [1000.0]])
    assert histogram([values], 10.0, 10.0, 1000.0, values.size).logarithmic
    assert not histogram([values / values], 1.0, 1.0, 1.0, values.size).logarithmic


@pytest.mark.parametrize(
    "values", [[0.0], [0.0, 5e-324], [0.0, 1.0, 5e-324], [3.0, 3.0], [1e6, np.nextafter(1e6, 2e6)]]
)
def test_times_that_are_all_but_equal_still_have_bins(values: list[float]) -> None:
    found = histogram([np.array(values)], min(values), float(np.median(values)), max(values), len(values))
    assert int(found.counts.sum()) == len(values)
    assert (np.diff(found.edges) > 0).all()
