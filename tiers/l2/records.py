"""What was measured, round by round and task by task, and the figures that follow from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tiers.statistics import MIB, summary


@dataclass(frozen=True)
class TaskRecord:
    """`seconds` is None for a task that timed out, `moved_bytes` where the adapter does not say what it wrote."""

    operation: str
    keys: int
    succeeded: int
    seconds: float | None
    moved_bytes: int | None


@dataclass(frozen=True)
class RoundRecord:
    """One round of `operation`; a mixed round has tasks of two operations."""

    operation: str
    number: int
    warmup: bool
    seconds: float | None
    tasks: tuple[TaskRecord, ...]

    @property
    def keys(self) -> int:
        return sum(task.keys for task in self.tasks)

    @property
    def succeeded(self) -> int:
        return sum(task.succeeded for task in self.tasks)

    @property
    def moved_bytes(self) -> int | None:
        """None as soon as one task's are not known."""
        moved = [task.moved_bytes for task in self.tasks]
        return (
            None
            if any(value is None for value in moved)
            else sum(value for value in moved if value is not None)
        )


@dataclass
class CellRecord:
    """One cell of the matrix for one adapter. The lists grow while it is measured: an interrupted run has them."""

    adapter: str
    type: str
    data_size_kb: int
    in_flight: int
    rounds: list[RoundRecord] = field(default_factory=list)
    expected_hits: int = 0
    """Keys that the measured lookups should have found."""
    notes: list[str] = field(default_factory=list)


def operation_figures(cell: CellRecord, operation: str, *, max_hit_rate: float) -> dict[str, Any] | None:
    """The figures of an operation's measured rounds; None where none was issued, and none of warm-up timed out.

    A timed-out round has no duration: it is out of durations and throughput, its keys are in the totals. Throughput
    (MiB/s) is bytes that moved over the time it took; rounds that moved nothing have none.
    """
    begun = [item for item in cell.rounds if item.operation == operation]
    rounds = [item for item in begun if not item.warmup]
    if not rounds:
        late = sum(item.seconds is None for item in begun)
        return _ended_in_warmup(operation, late) if late else None
    whole = [item for item in rounds if item.seconds is not None]
    keys = sum(item.keys for item in rounds)
    succeeded = sum(item.succeeded for item in rounds)
    figures: dict[str, Any] = {
        "operation": operation.capitalize(),
        "rounds": len(rounds),
        "rounds_timed_out": len(rounds) - len(whole),
        "keys_per_round": rounds[0].keys,
        "total_keys": keys,
        "total_success": succeeded,
    }
    durations = summary([item.seconds * 1000 for item in whole if item.seconds is not None])
    if durations is not None:
        figures |= {
            "duration_avg_ms": durations.mean,
            "duration_min_ms": durations.min,
            "duration_max_ms": durations.max,
            "duration_p50_ms": durations.p50,
            "duration_p90_ms": durations.p90,
            "duration_p99_ms": durations.p99,
            "duration_std_ms": durations.std,
        }
    figures |= _throughput(operation, whole)
    seconds = sum(item.seconds for item in whole if item.seconds is not None)
    done = sum(item.succeeded if operation != "lookup" else item.keys for item in whole)
    if seconds and done:
        figures["avg_ops_per_sec"] = done / seconds
        figures["avg_latency_per_key_ms"] = seconds * 1000 / done
    for kind in sorted({task.operation for item in whole for task in item.tasks}):
        latencies = summary([task.seconds * 1000 for task in _tasks(whole, kind) if task.seconds is not None])
        if latencies is not None:
            name = "task_latency" if kind == operation else f"{kind}_task_latency"
            figures |= {
                f"{name}_n": latencies.count,
                f"{name}_avg_ms": latencies.mean,
                f"{name}_p50_ms": latencies.p50,
                f"{name}_p90_ms": latencies.p90,
                f"{name}_p99_ms": latencies.p99,
            }
    if operation == "lookup":
        figures |= {
            "expected_max_hit_rate": max_hit_rate,
            "expected_hit_keys": cell.expected_hits,
            "actual_hit_rate": succeeded / keys,
        }
    return figures


def _ended_in_warmup(operation: str, timed_out: int) -> dict[str, Any]:
    return {
        "operation": operation.capitalize(),
        "rounds": 0,
        "rounds_timed_out": 0,
        "warmup_rounds_timed_out": timed_out,
        "total_keys": 0,
        "total_success": 0,
        "avg_throughput_mbps": None,
        "throughput_reason": "a warm-up round timed out, and no measured round was begun",
    }


def _tasks(rounds: Sequence[RoundRecord], operation: str) -> list[TaskRecord]:
    return [task for item in rounds for task in item.tasks if task.operation == operation]


def _throughput(operation: str, whole: Sequence[RoundRecord]) -> dict[str, Any]:
    if operation == "lookup":
        return {"avg_throughput_mbps": 0.0}  # it moves no data, and the guide writes 0
    moved = [(item.moved_bytes, item.seconds) for item in whole]
    if any(count is None for count, _ in moved):
        return {"avg_throughput_mbps": None, "throughput_reason": "the adapter does not say what it wrote"}
    rates = [count / MIB / seconds for count, seconds in moved if count and seconds]
    if not rates:
        return {"avg_throughput_mbps": None, "throughput_reason": "no bytes moved"}
    total = sum(count for count, _ in moved if count)
    seconds = sum(seconds for _, seconds in moved if seconds)
    return {
        "avg_throughput_mbps": total / MIB / seconds,
        "min_throughput_mbps": min(rates),
        "max_throughput_mbps": max(rates),
        "moved_bytes": total,
    }
