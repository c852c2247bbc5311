"""One round: submit every task, then wait for all of them, each with its own clock."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tiers.interfaces import Batch, L2Backend, Operation, Task, TaskResult


@dataclass(frozen=True)
class TaskOutcome:
    """`seconds` from submission to completion; None for a task that did not end in time."""

    operation: Operation
    batch: Batch
    seconds: float | None
    result: TaskResult | None


@dataclass(frozen=True)
class Round:
    """`seconds` from the first submission to the last completion; None when a task timed out."""

    seconds: float | None
    tasks: tuple[TaskOutcome, ...]
    late: tuple[Task, ...] = ()

    @property
    def timed_out(self) -> bool:
        return self.seconds is None


def run_round(
    backend: L2Backend, work: Sequence[tuple[Operation, Batch]], *, timeout: float, until: float
) -> Round:
    """Run tasks together. Each has `timeout` seconds, none goes on past `until` (monotonic clock)."""
    begin = time.perf_counter()
    submitted: dict[int, float] = {}
    ended: dict[int, tuple[float, TaskResult]] = {}
    pending: dict[Task, int] = {}
    for index, (operation, batch) in enumerate(work):
        submitted[index] = time.perf_counter()
        pending[backend.submit(operation, batch)] = index
        if index + 1 < len(work):
            _collect(backend, pending, ended, 0.0)
    while pending:
        oldest = min(submitted[index] for index in pending.values())
        left = min(oldest + timeout - time.perf_counter(), until - time.monotonic())
        if not _collect(backend, pending, ended, max(left, 0.0)) and left <= 0:
            break
    seconds = None if pending else max(at for at, _ in ended.values()) - begin
    outcomes = []
    for index, (operation, batch) in enumerate(work):
        if index in ended:
            at, result = ended[index]
            outcomes.append(TaskOutcome(operation, batch, at - submitted[index], result))
        else:
            outcomes.append(TaskOutcome(operation, batch, None, None))
    return Round(seconds, tuple(outcomes), tuple(pending))


def _collect(
    backend: L2Backend,
    pending: dict[Task, int],
    ended: dict[int, tuple[float, TaskResult]],
    timeout: float,
) -> bool:
    """Move what has ended from `pending` to `ended`, with the time. False when nothing had."""
    finished = backend.wait(pending.keys(), timeout)
    now = time.perf_counter()
    for task, result in finished.items():
        ended[pending.pop(task)] = (now, result)
    return bool(finished)
