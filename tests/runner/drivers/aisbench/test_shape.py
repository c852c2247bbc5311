import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.drivers.aisbench.attempts import Span
from runner.drivers.aisbench.shape import LoadShape, load_shape

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=12)


@given(SPANS, st.integers(1, 6), st.integers(0, 4))
def test_against_counting_every_moment(pairs: list[tuple[int, int]], slots: int, more: int) -> None:
    spans = [Span(start * 10**9, (start + length) * 10**9) for start, length in pairs]
    rows = len(spans) + more
    begin, end = min(s.start_ns for s in spans) // 10**9, max(s.end_ns for s in spans) // 10**9
    in_flight = [sum(a <= t < a + n for a, n in pairs) for t in range(begin, end)]
    left = [rows - sum(a <= t for a, _ in pairs) for t in range(begin, end)]
    shape = load_shape(spans, slots=slots, rows=rows)
    assert shape.wall_seconds == end - begin
    assert shape.mean_in_flight == pytest.approx(sum(in_flight) / (end - begin))
    assert shape.max_in_flight == max(in_flight)
    empty = sum(max(0, min(slots - now, rest)) for now, rest in zip(in_flight, left, strict=True))
    assert shape.empty_seconds == pytest.approx(empty)


def test_nothing() -> None:
    assert load_shape([], slots=3, rows=5) == LoadShape(0.0, 0.0, 0, 0.0)
