"""Exit codes follow from checks, and statistics from one definition."""

import statistics as oracle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import ExitCode
from tiers.statistics import percentile, summary
from tiers.verdict import Status, check, not_requested, verdict

GOOD = check("data", checked=3, failures=())
BAD = check("operations", checked=3, failures=["one"])
NOTHING = check("lookups", checked=0, failures=())
UNASKED = not_requested("data", "--skip-verify")


@pytest.mark.parametrize(
    ("checks", "code"),
    [
        ([GOOD], ExitCode.DONE),
        ([GOOD, UNASKED], ExitCode.DONE),
        ([GOOD, BAD], ExitCode.REQUESTS_FAILED),
        ([BAD, NOTHING], ExitCode.REQUESTS_FAILED),
        ([GOOD, NOTHING], ExitCode.INCONCLUSIVE),
        ([NOTHING], ExitCode.INCONCLUSIVE),
        ([UNASKED], ExitCode.INCONCLUSIVE),
        ([], ExitCode.INCONCLUSIVE),
    ],
)
def test_only_passed_checks_are_zero(checks: list, code: ExitCode) -> None:  # type: ignore[type-arg]
    assert verdict(checks).exit_code is code
    assert verdict(checks, interrupted=True).exit_code is ExitCode.INTERRUPTED


def test_many_failures_are_counted_and_some_shown() -> None:
    made = check("operations", checked=100, failures=[f"task {number}" for number in range(20)], failed=70)
    assert (made.status, made.failed) == (Status.FAILED, 70)
    assert "task 0" in made.detail
    assert "task 19" not in made.detail


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=200), st.floats(0.01, 1))
def test_percentile_is_the_smallest_that_covers_the_share(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-9
    smaller = [value for value in ordered if value < found]
    assert len(smaller) < share * len(ordered)


@given(st.lists(st.floats(0.001, 1e6), min_size=2, max_size=50))
def test_summary_against_the_standard_library(values: list[float]) -> None:
    made = summary(values)
    assert made is not None
    assert made.count == len(values)
    assert made.mean == pytest.approx(oracle.fmean(values))
    assert made.std == pytest.approx(oracle.stdev(values), abs=1e-6)
    assert (made.min, made.max) == (min(values), max(values))


def test_nothing_has_no_statistics_and_one_value_no_deviation() -> None:
    assert summary([]) is None
    assert summary([1.0]).std is None  # type: ignore[union-attr]
