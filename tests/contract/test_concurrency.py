"""What is said of a load that is lighter than the one that was asked for."""

from typing import Any

import pytest

from contract.concurrency import not_reached, too_few_lanes
from contract.measurement import LoadRecord


def load(**changes: Any) -> LoadRecord:
    values: dict[str, Any] = {
        "driver": "native", "concurrency": 20, "stream": True, "retries": 0, "timeout_seconds": 9.0, "started": 100,
        "finished": 100, "failed": 0, "aborted": 0, "retried": 0, "wall_seconds": 10.0, "mean_in_flight": 12.0,
        "max_in_flight": 20, "lane_wait_seconds": 0.0, "mean_while_waiting": 12.0,
    }  # fmt: skip
    return LoadRecord(**(values | changes))


def test_lanes_are_counted_before_the_load() -> None:
    assert too_few_lanes(32, lanes=32, groups=4, ranks=8) is None
    assert (
        too_few_lanes(160, lanes=32, groups=4, ranks=8)
        == "32 of 160: 8 ranks x 4 groups are 32 lanes, one request each"
    )
    # A group of one request has no lane on the other ranks.
    assert "3 of 4: the requests of 2 groups on 2 ranks are 3 lanes" in str(
        too_few_lanes(4, lanes=3, groups=2, ranks=2)
    )


@pytest.mark.parametrize(("mean", "said"), [(20.0, False), (19.0, False), (18.9, True), (None, False)])
def test_less_than_95_percent_while_others_were_left_is_said(mean: float | None, said: bool) -> None:
    finding = not_reached(load(mean_while_waiting=mean, mean_in_flight=1.0))
    assert (finding is not None) == said
    if finding is not None:
        assert finding.code == "CONCURRENCY_NOT_REACHED"
        assert finding.message.startswith("18.9 of 20 requests were in flight on average")
        assert "20 at most" in finding.message


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lane_wait_seconds": None}, "request rate"),
        ({"lane_wait_seconds": 79.0}, "waited for their lanes"),
        ({"lane_wait_seconds": 5.0}, "native driver did not start"),
        ({"retried": 3}, "3 attempts were repeated"),
        ({"driver": "aisbench"}, "aisbench driver did not start"),
    ],
)
def test_the_reason_is_one_that_fits(changes: dict[str, Any], reason: str) -> None:
    finding = not_reached(load(**changes))
    assert finding is not None
    assert reason in finding.message
