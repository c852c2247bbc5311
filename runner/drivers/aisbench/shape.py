"""How full the load was, from when its attempts were under way. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from runner.drivers.aisbench.attempts import Span


@dataclass(frozen=True)
class LoadShape:
    """`empty_seconds`: slot-seconds without a request although there were some left to start. `mean_while_waiting`: in
    flight on average over that time, from when all slots were taken for the first time, else from the start; None when no
    other was left then."""

    wall_seconds: float
    mean_in_flight: float
    max_in_flight: int
    empty_seconds: float
    mean_while_waiting: float | None = None


def load_shape(spans: Iterable[Span], *, slots: int, rows: int) -> LoadShape:
    """The shape of a load of `rows` requests over `slots` slots.

    Attempts of one request count one by one: between them it occupies nothing.
    """
    # At one moment ends come before starts: a slot that changes hands is not counted twice.
    changes = sorted(
        change
        for span in spans
        for change in ((span.start_ns, 1, span.first), (max(span.end_ns, span.start_ns), -1, False))
    )
    if not changes:
        return LoadShape(0.0, 0.0, 0, 0.0)
    busy = empty = in_flight = highest = started = left = busy_while_left = 0
    before = changes[0][0]
    for moment, change, first in changes:
        passed = moment - before
        busy += passed * in_flight
        empty += passed * max(0, min(slots - in_flight, rows - started))
        if started < rows:
            left += passed
            busy_while_left += passed * in_flight
        before = moment
        in_flight += change
        started += first
        if in_flight == slots > highest:
            left = busy_while_left = 0  # filling the slots takes its time once
        highest = max(highest, in_flight)
    wall = before - changes[0][0]
    return LoadShape(
        wall / 1e9,
        busy / wall if wall else 0.0,
        highest,
        empty / 1e9,
        busy_while_left / left if left else None,
    )
