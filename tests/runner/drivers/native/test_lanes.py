import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import DriverError
from runner.drivers.native.lanes import LaneQueue, OutgoingRequest


def request(position, lane=None, lazy=False, sequence=None):
    return OutgoingRequest(
        position, f"r{position}", "g", (lambda: b"{}") if lazy else b"{}", lane, None, sequence
    )


def simulate(requests, concurrency, choose):
    """Run the queue against slots that end in the order `choose` says; returns starts as (position, running)."""
    queue, running, starts = LaneQueue(iter(requests), concurrency), [], []
    highest_waiting = 0
    while True:
        while len(running) < concurrency and (taken := queue.take()) is not None:
            running.append(taken)
            starts.append((taken, list(running)))
        highest_waiting = max(highest_waiting, queue.waiting)
        if not running:
            return starts, queue, highest_waiting
        queue.release(running.pop(choose(len(running))))


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=40),
    st.integers(1, 6),
    st.booleans(),
    st.randoms(),
)
def test_lane_rules(lanes, concurrency, lazy, random):
    requests = [request(i, lane, lazy) for i, lane in enumerate(lanes)]
    starts, queue, waiting = simulate(requests, concurrency, random.randrange)
    assert sorted(taken.position for taken, _ in starts) == list(range(len(lanes)))
    for _, running in starts:
        busy = [r.lane for r in running if r.lane is not None]
        assert len(busy) == len(set(busy))
    for lane in set(lanes) - {None}:
        order = [taken.position for taken, _ in starts if taken.lane == lane]
        assert order == sorted(order)
    free = [taken.position for taken, _ in starts if taken.lane is None]
    assert free == sorted(free)
    assert queue.waiting == 0
    if not lazy:
        assert waiting <= concurrency + len(set(lanes))


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 6), st.randoms())
def test_no_slot_is_empty_while_a_lane_is_free(lanes, concurrency, random):
    """With bodies made late, every start fills as many slots as lanes allow: an oracle that knows the future."""
    requests = [request(i, lane, lazy=True) for i, lane in enumerate(lanes)]
    queue, running, left = LaneQueue(iter(requests), concurrency), [], dict(enumerate(lanes))
    while left or running:
        while len(running) < concurrency and (taken := queue.take()) is not None:
            busy = {r.lane for r in running}
            assert taken.position == min(p for p, lane in left.items() if lane not in busy)
            del left[taken.position]
            running.append(taken)
        busy = {r.lane for r in running}
        startable = [p for p, lane in left.items() if lane not in busy]
        assert len(running) == concurrency or not startable
        queue.release(running.pop(random.randrange(len(running))))


def test_reading_ahead_is_bounded_by_bodies_in_memory():
    read = []

    def requests(lazy):
        for i in range(10_000):
            read.append(i)
            yield request(i, "a", lazy)

    queue = LaneQueue(requests(lazy=False), 4)
    assert queue.take().position == 0
    assert queue.take() is None
    # 4 slots + 1 lane may wait, beside the one that runs.
    assert (len(read), queue.waiting) == (6, 5)
    read.clear()
    queue = LaneQueue(requests(lazy=True), 4)
    assert queue.take().position == 0
    assert queue.take() is None
    assert len(read) == 10_000


def test_without_lanes_nothing_is_read_ahead():
    read = []
    queue = LaneQueue((read.append(i) or request(i) for i in range(100)), 8)
    for expected in range(5):
        assert queue.take().position == expected
        assert len(read) == expected + 1


@pytest.mark.parametrize("sequence", [0, 1])
def test_a_lane_out_of_order_is_refused(sequence):
    queue = LaneQueue(iter([request(0, "a", sequence=1), request(1, "a", sequence=sequence)]), 2)
    queue.take()
    with pytest.raises(DriverError, match="r1"):
        queue.take()
