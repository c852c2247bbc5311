"""The number of open files: raised where it may be, told where it may not."""

import resource
from collections.abc import Callable

import pytest

from contract.errors import ScenarioError
from runner.open_files import OWN_FILES, require_open_files

Limits = Callable[[int, int], list[tuple[int, int]]]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    def allow(soft: int, hard: int) -> list[tuple[int, int]]:
        changes: list[tuple[int, int]] = []
        monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda _, limits: changes.append(limits))
        return changes

    return allow


def test_enough_is_left_as_it_is(limits: Limits) -> None:
    changes = limits(1024, 4096)
    require_open_files(1024 - OWN_FILES, "driver.concurrency")
    assert changes == []
    limits(resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    require_open_files(100_000, "driver.concurrency")


def test_the_limit_is_raised_as_far_as_is_needed(limits: Limits) -> None:
    changes = limits(1024, resource.RLIM_INFINITY)
    require_open_files(2000, "driver.concurrency")
    assert changes == [(2000 + OWN_FILES, resource.RLIM_INFINITY)]
    changes = limits(1024, 4096)
    require_open_files(2000, "driver.concurrency")
    assert changes == [(2000 + OWN_FILES, 4096)]


@pytest.mark.parametrize(("soft", "hard"), [(16, 16), (16, 30)])
def test_too_few_are_told_before_the_event_loop_would_end_the_process(
    limits: Limits, soft: int, hard: int
) -> None:
    limits(soft, hard)
    with pytest.raises(
        ScenarioError, match=rf"driver.concurrency: 8 .* {8 + OWN_FILES} open files, and {hard} are"
    ):
        require_open_files(8, "driver.concurrency")
