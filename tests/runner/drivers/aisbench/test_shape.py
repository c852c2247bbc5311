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
    full = next((t for t, now in enumerate(in_flight) if now >= slots), 0)
    while_left = [now for now, rest in zip(in_flight[full:], left[full:], strict=True) if rest > 0]
    mean = sum(while_left) / len(while_left) if while_left else None
    assert shape.mean_while_waiting == (None if mean is None else pytest.approx(mean))


def test_a_repeated_attempt_starts_no_other_request() -> None:
    spans = [Span(0, 10), Span(20, 30, first=False), Span(40, 50), Span(60, 70)]
    shape = load_shape(spans, slots=1, rows=3)
    assert shape.mean_while_waiting == pytest.approx(30 / 60)
    assert shape.empty_seconds == pytest.approx(30 / 1e9)


def test_filling_the_slots_is_no_lack_of_concurrency() -> None:
    # Starts at 0, 6 and 9 over three slots, then full until the last row has started.
    spans = [Span(0, 20), Span(6, 20), Span(9, 20), Span(20, 40), Span(20, 40), Span(20, 40), Span(40, 50)]
    assert load_shape(spans, slots=3, rows=7).mean_while_waiting == pytest.approx(3)


def test_nothing() -> None:
    assert load_shape([], slots=3, rows=5) == LoadShape(0.0, 0.0, 0, 0.0)
