import itertools
import statistics

import pytest

from contract.errors import DriverError
from runner.drivers.native.arrivals import arrival_times


def first(count, *arguments, **options):
    return list(itertools.islice(arrival_times(*arguments, **options), count))


def test_constant_gaps_do_not_drift():
    times = first(100_001, 3.0)
    assert times[:4] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert times[-1] == pytest.approx(100_000 / 3, abs=1e-9)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_of_the_rate_and_the_spread_of_the_burstiness(burstiness):
    gaps = [b - a for a, b in itertools.pairwise(first(40_000, 8.0, burstiness=burstiness, seed=3))]
    assert min(gaps) >= 0
    assert statistics.mean(gaps) == pytest.approx(1 / 8, rel=0.03)
    # A gamma distribution's coefficient of variation is 1 / sqrt(shape).
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_the_same_seed_gives_the_same_times():
    assert first(50, 2.0, burstiness=1.0, seed=5) == first(50, 2.0, burstiness=1.0, seed=5)
    assert first(50, 2.0, burstiness=1.0, seed=5) != first(50, 2.0, burstiness=1.0, seed=6)


def test_a_ramp_reaches_the_rate():
    times = first(200, 10.0, ramp_up_seconds=8.0)
    within = [sum(second <= time < second + 1 for time in times) for second in range(14)]
    assert within[:8] == sorted(within[:8]), "the rate must rise"
    assert sum(within[:8]) == pytest.approx(40, abs=1), "half the rate on average"
    assert within[9:13] == [10, 10, 10, 10]


@pytest.mark.parametrize(
    ("rate", "options"),
    [(0, {}), (-1, {}), (1, {"burstiness": 0}), (1, {"ramp_up_seconds": -1})],
)
def test_impossible_numbers_are_refused(rate, options):
    with pytest.raises(DriverError, match="above 0"):
        arrival_times(rate, **options)
