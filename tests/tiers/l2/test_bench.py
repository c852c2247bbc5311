"""`bench l2` on an adapter in memory: what it says of a right one, and of every kind of wrong one."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from contract.errors import ExitCode, ScenarioError, ServiceError
from tests.tiers.memory_l2 import MemoryL2
from tiers.interfaces import Batch, Bytes, L2Backend, Operation, TaskResult
from tiers.l2.bench import L2Result, document, run
from tiers.l2.faults import FAULTS, FaultyBackend
from tiers.l2.objects import Objects
from tiers.l2.parameters import L2Parameters, checked
from tiers.l2.specs import Spec
from tiers.l2.text import header, summary
from tiers.statistics import MIB
from tiers.verdict import Status

SPEC = Spec({"type": "memory"})


def bench(
    backend: MemoryL2,
    *,
    wrap: Callable[[L2Backend], L2Backend] = lambda backend: backend,
    stop: threading.Event | None = None,
    **options: Any,
) -> L2Result:
    parameters = checked(L2Parameters(**{"num_keys": 4, "data_size_kb": (1,), "seed": 11, **options}))

    def open_l2(spec: dict[str, Any], arena: Bytes, align_bytes: int) -> L2Backend:
        assert arena.ctypes.data % align_bytes == 0
        return wrap(backend)

    return run([SPEC], parameters, open_l2, stop=stop)


def status(result: L2Result) -> dict[str, Status]:
    return {item.name: item.status for item in result.checks}


def figures(result: L2Result, operation: str) -> dict[str, Any]:
    return document(result, {})["cells"][0]["operations"][operation]  # type: ignore[no-any-return]


def test_a_right_adapter_is_called_right_and_left_empty_and_unlocked() -> None:
    backend = MemoryL2()
    result = bench(backend, in_flight=(3,), rounds=2, lookup_max_hit_rate=0.5, mixed=0.4)
    assert result.verdict.exit_code is ExitCode.DONE
    assert set(status(result)) == {"operations", "data", "lookups", "cold start", "time-outs"}
    assert not backend.objects
    assert not any(backend.locks.values())
    assert backend.closed == 1


def test_totals_and_throughput_come_from_what_was_done() -> None:
    result = bench(MemoryL2(), in_flight=(3,), rounds=2, warmup_rounds=1)
    store, load = figures(result, "store"), figures(result, "load")
    for operation in (store, load):
        assert (operation["rounds"], operation["keys_per_round"]) == (2, 12)
        assert (operation["total_keys"], operation["total_success"]) == (24, 24)
        assert operation["moved_bytes"] == 24 * 1024
        assert operation["task_latency_n"] == 6
        seconds = 2 * operation["duration_avg_ms"] / 1000
        assert operation["avg_throughput_mbps"] == pytest.approx(24 * 1024 / MIB / seconds)
    lookup = figures(result, "lookup")
    assert lookup["avg_throughput_mbps"] == 0, "as the guide writes it: it moves no data"
    assert (lookup["total_keys"], lookup["total_success"]) == (24, 0)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("keys", [2, 4])
def test_every_fault_is_red(fault: str, keys: int) -> None:
    result = bench(
        MemoryL2(),
        wrap=lambda inner: FaultyBackend(inner, fault),
        num_keys=keys,
        in_flight=(2,),
        rounds=2,
        lookup_max_hit_rate=0.5,
    )
    assert result.verdict.exit_code is ExitCode.REQUESTS_FAILED, result.checks


@pytest.mark.parametrize("keys", [1, 2, 3])
def test_an_adapter_that_loads_nothing_fails_for_every_key_also_the_first(keys: int) -> None:
    result = bench(
        MemoryL2(), wrap=lambda inner: FaultyBackend(inner, "no-op load"), num_keys=keys, in_flight=(4,)
    )
    data = next(item for item in result.checks if item.name == "data")
    assert (data.checked, data.failed) == (8 * keys, 8 * keys)
    assert figures(result, "load")["avg_throughput_mbps"] is None


def test_failed_stores_are_no_throughput() -> None:
    backend = MemoryL2()
    backend.fails_stores = True
    result = bench(backend)
    assert result.verdict.exit_code is ExitCode.REQUESTS_FAILED
    assert figures(result, "store")["avg_throughput_mbps"] is None
    assert figures(result, "store")["total_success"] == 0
    assert figures(result, "load")["avg_throughput_mbps"] is None


def test_a_service_that_died_is_not_asked_for_ever() -> None:
    backend = MemoryL2()
    backend.fails_stores = True
    result = bench(backend, rounds=10**6)
    assert "nothing succeeded" in str(result.halted)
    assert result.findings.rounds == 3


def test_loads_from_an_empty_adapter_are_failures_without_throughput() -> None:
    result = bench(MemoryL2(), only="load")
    assert result.verdict.exit_code is ExitCode.REQUESTS_FAILED
    assert figures(result, "load")["throughput_reason"] == "no bytes moved"


def test_bytes_that_an_adapter_does_not_count_are_no_throughput_and_no_failure() -> None:
    backend = MemoryL2()
    backend.reports_bytes = False
    result = bench(backend)
    assert result.verdict.exit_code is ExitCode.DONE
    assert figures(result, "store")["avg_throughput_mbps"] is None
    assert "does not say" in figures(result, "store")["throughput_reason"]


def test_a_second_store_writes_again_although_the_adapter_skips_what_it_has() -> None:
    backend = MemoryL2()
    for _ in range(2):
        result = bench(backend, only="store", seed=0)
        assert result.verdict.exit_code is ExitCode.DONE
        assert figures(result, "store")["moved_bytes"] == 4 * 1024


def test_a_store_that_finds_its_objects_there_is_refused() -> None:
    backend = MemoryL2()
    bench(backend, only="store", seed=0)
    backend.deletes = False
    result = bench(backend, only="store", seed=0)
    assert result.verdict.exit_code is ExitCode.REQUESTS_FAILED
    assert status(result)["cold start"] is Status.FAILED
    assert result.halted is not None
    assert "--seed" in result.halted


@pytest.mark.parametrize(
    ("rate", "rounds", "expected"), [(1.0, 1, 32), (0.5, 3, 48), (0.0, 2, 0), (0.33, 3, 31)]
)
def test_expected_hit_keys_are_the_floor_over_measured_rounds(
    rate: float, rounds: int, expected: int
) -> None:
    result = bench(MemoryL2(), num_keys=32, rounds=rounds, warmup_rounds=1, lookup_max_hit_rate=rate)
    lookup = figures(result, "lookup")
    assert lookup["expected_hit_keys"] == int(32 * rounds * rate) == expected
    assert lookup["actual_hit_rate"] == pytest.approx(expected / (32 * rounds))
    assert result.verdict.exit_code is ExitCode.DONE


def test_missing_keys_are_missing_also_after_a_longer_run() -> None:
    backend = MemoryL2()
    bench(backend, only="store", rounds=20, seed=0)
    result = bench(backend, only="lookup", rounds=2, seed=0, lookup_max_hit_rate=0.0)
    assert figures(result, "lookup")["total_success"] == 0
    assert result.verdict.exit_code is ExitCode.DONE


def test_store_then_load_and_lookup_in_other_runs_meet_the_same_objects() -> None:
    backend = MemoryL2()
    stored = bench(backend, only="store", rounds=3, in_flight=(2,), seed=0)
    assert status(stored)["data"] is Status.PASSED
    assert len(backend.objects) == 4 * 8
    loaded = bench(backend, only="load", rounds=2, in_flight=(1,), seed=0)
    assert loaded.verdict.exit_code is ExitCode.DONE
    found = bench(backend, only="lookup", rounds=3, in_flight=(2,), seed=0, lookup_max_hit_rate=1.0)
    assert figures(found, "lookup")["actual_hit_rate"] == 1.0
    cleaned = bench(backend, clean=True, rounds=3, in_flight=(2,), seed=0)
    assert cleaned.verdict.exit_code is ExitCode.DONE
    assert cleaned.removed == [("MemoryL2 1 KiB", 32, 0)]
    assert not backend.objects


def test_lookups_by_themselves_may_find_less_than_asked_for_and_say_so() -> None:
    """The guide's quick start: nothing was stored before. Keys that were found and never stored stay a fault."""
    result = bench(MemoryL2(), only="lookup", lookup_max_hit_rate=0.5, warmup_rounds=0)
    assert result.verdict.exit_code is ExitCode.DONE
    assert figures(result, "lookup")["actual_hit_rate"] == 0.0
    said = " ".join(summary(result).split())
    assert "2 keys that may have been there were not: --only store with the same options stores them" in said
    assert bench(Invents(), only="lookup").verdict.exit_code is ExitCode.REQUESTS_FAILED


class Invents(MemoryL2):
    """Finds everything."""

    def _end(self, operation: Operation, batch: Batch) -> TaskResult:
        found = super()._end(operation, batch)
        self.locks.update(dict.fromkeys(batch.names, 1))
        return TaskResult((True,) * len(batch.names), found.moved_bytes)


def test_only_what_is_there_is_deleted() -> None:
    """Adapters that count what they hold would count an object twice, and suspect a fault of their own."""
    backend = MemoryL2()
    deleted: list[bool] = []
    honest = backend.delete

    def delete(names: Any) -> None:
        deleted.extend(name in backend.objects for name in names)
        honest(names)

    backend.delete = delete  # type: ignore[method-assign]
    assert bench(backend, in_flight=(4,), rounds=2, mixed=0.5).verdict.exit_code is ExitCode.DONE
    assert deleted
    assert all(deleted)


def test_a_time_out_in_a_warm_up_round_does_not_hide_the_operation() -> None:
    result = bench(MemoryL2(), wrap=Stalls, rounds=5, warmup_rounds=1, task_timeout=0.1)  # type: ignore[arg-type]
    load = figures(result, "load")
    assert (load["rounds"], load["warmup_rounds_timed_out"], load["avg_throughput_mbps"]) == (0, 1, None)
    text = summary(result)
    assert "- Load -" in text
    assert "Warm-up rounds timed out:" in text


GUIDE_CONFIG = {
    "l2_adapter_json", "num_keys", "in_flight", "keys_per_round", "data_size_kb", "data_per_round_mb",
    "measurement_rounds", "warmup_rounds", "lookup_max_hit_rate",
}  # fmt: skip
GUIDE_OPERATION = {
    "operation", "rounds", "rounds_timed_out", "keys_per_round", "total_keys", "total_success", "duration_avg_ms",
    "duration_min_ms", "duration_max_ms", "duration_p50_ms", "duration_p99_ms", "duration_std_ms", "throughput_avg_mbps",
    "throughput_min_mbps", "throughput_max_mbps", "ops_per_sec_avg", "latency_per_key_ms",
}  # fmt: skip


def test_the_keys_of_the_original_are_there_beside_ours() -> None:
    result = bench(MemoryL2(), rounds=2, in_flight=(2,), lookup_max_hit_rate=0.5)
    metrics = document(result, {})["metrics"]
    assert set(metrics) == {"config", "op_0", "op_1", "op_2"}
    assert set(metrics["config"]) == GUIDE_CONFIG
    assert [metrics[f"op_{n}"]["operation"] for n in range(3)] == ["Store", "Lookup", "Load"]
    assert set(metrics["op_0"]) == set(metrics["op_2"]) == GUIDE_OPERATION
    lookup = GUIDE_OPERATION - {"throughput_min_mbps", "throughput_max_mbps"}
    assert set(metrics["op_1"]) == lookup | {"expected_max_hit_rate", "expected_hit_count", "actual_hit_rate"}
    assert metrics["op_1"]["throughput_avg_mbps"] == 0
    assert metrics["op_0"]["throughput_avg_mbps"] == figures(result, "store")["avg_throughput_mbps"]


def test_progress_has_the_lines_of_the_guide() -> None:
    lines: list[str] = []
    parameters = checked(L2Parameters(num_keys=4, data_size_kb=(512,), in_flight=(3,), seed=1))
    backend = MemoryL2()
    run([SPEC], parameters, lambda *_: backend, say=lines.append)
    text = "\n".join(lines)
    for line in (
        "[Init] Creating adapter...",
        "[Init] Adapter created successfully (MemoryL2).",
        "[Store] Running 1 warmup + 1 measurement rounds...",
        "[Verify] OK",
    ):
        assert line in text
    shown = header([SPEC], parameters)
    for name, value in (("Adapter config", "memory"), ("Keys / round", "12"), ("Data / round", "6 MiB")):
        assert f"  {name:<23}: {value}" in shown


def test_data_that_is_wrong_is_not_verified_ok() -> None:
    for fault in FAULTS:
        lines: list[str] = []
        parameters = checked(L2Parameters(num_keys=4, data_size_kb=(1,), in_flight=(2,), seed=1))
        result = run(
            [SPEC], parameters, lambda *_, fault=fault: FaultyBackend(MemoryL2(), fault), say=lines.append
        )
        said = [line for line in lines if "[Verify]" in line]
        assert (
            bool(result.findings.data_failures) <= any("MISMATCH" in line for line in said) or result.halted
        )


def test_data_of_another_seed_does_not_pass() -> None:
    backend = MemoryL2()
    bench(backend, only="store", seed=1)
    for name in list(backend.objects):
        other = Objects(2, 1024)
        renamed = next(other.name(index) for index in range(100) if other.name(index) not in backend.objects)
        backend.objects[renamed] = backend.objects.pop(name)
    result = bench(backend, only="load", seed=2)
    assert result.verdict.exit_code is ExitCode.REQUESTS_FAILED
    assert status(result)["data"] is Status.FAILED


def test_without_verification_the_rest_is_still_checked() -> None:
    result = bench(MemoryL2(), skip_verify=True)
    assert result.verdict.exit_code is ExitCode.DONE
    assert status(result)["data"] is Status.NOT_REQUESTED


def test_keep_keeps() -> None:
    backend = MemoryL2()
    bench(backend, keep=True)
    assert len(backend.objects) == 8


def test_objects_that_stay_are_noted() -> None:
    backend = MemoryL2()
    backend.deletes = False
    result = bench(backend)
    assert result.verdict.exit_code is ExitCode.DONE
    assert "own objects stay" in result.cells[0].notes[0]


def test_an_adapter_that_never_answers_is_left_within_its_time() -> None:
    backend = MemoryL2()
    backend.answers = False
    begin = time.monotonic()
    with pytest.raises(ServiceError, match="no answer to a lookup"):
        bench(backend, task_timeout=0.2)
    assert time.monotonic() - begin < 5


class Stalls:
    """Stops answering when the first load arrives."""

    def __init__(self, inner: MemoryL2, resume_after: float | None = None) -> None:
        self._inner = inner
        self._resume_after = resume_after
        self._since: float | None = None
        self._stalled_once = False
        self.name = inner.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def submit(self, operation: Operation, batch: Any) -> Any:
        if operation is Operation.LOAD and not self._stalled_once:
            self._stalled_once, self._since = True, time.monotonic()
        return self._inner.submit(operation, batch)

    def wait(self, pending: Any, timeout: float) -> Any:
        if self._since is not None:
            resume = None if self._resume_after is None else self._since + self._resume_after
            if resume is None or time.monotonic() < resume:
                time.sleep(min(timeout, 0.02))
                return {}
            self._since = None
        return self._inner.wait(pending, timeout)


def test_the_first_time_out_ends_the_run_and_counts_its_keys() -> None:
    result = bench(MemoryL2(), wrap=Stalls, rounds=5, warmup_rounds=0, task_timeout=0.1)  # type: ignore[arg-type]
    assert result.verdict.exit_code is ExitCode.REQUESTS_FAILED
    load = figures(result, "load")
    assert (load["rounds"], load["rounds_timed_out"], load["total_keys"], load["total_success"]) == (
        1,
        1,
        4,
        0,
    )
    assert "duration_avg_ms" not in load
    assert load["avg_throughput_mbps"] is None
    assert "Rounds timed out:" in summary(result)


def test_a_run_that_goes_on_after_time_outs_leaves_them_out_of_durations() -> None:
    result = bench(
        MemoryL2(),
        wrap=lambda inner: Stalls(inner, resume_after=0.25),  # type: ignore[arg-type, return-value]
        rounds=3,
        warmup_rounds=0,
        task_timeout=0.1,
        continue_after_timeout=True,
    )
    load = figures(result, "load")
    assert (load["rounds"], load["rounds_timed_out"], load["total_keys"], load["total_success"]) == (
        3,
        1,
        12,
        8,
    )
    assert load["duration_max_ms"] < 100
    assert result.verdict.exit_code is ExitCode.REQUESTS_FAILED


def test_the_deadline_ends_the_whole() -> None:
    result = bench(MemoryL2(), rounds=10**6, deadline=0.3)
    assert result.verdict.exit_code is ExitCode.REQUESTS_FAILED
    assert "--deadline" in str(result.halted)


def test_an_interrupted_run_keeps_what_it_has_and_says_130() -> None:
    backend, stop = MemoryL2(), threading.Event()
    stop.set()
    result = bench(backend, stop=stop)
    assert result.verdict.exit_code is ExitCode.INTERRUPTED
    assert document(result, {})["halted"] == "interrupted"


def test_the_matrix_has_a_cell_for_every_pair_and_a_table() -> None:
    result = bench(MemoryL2(), data_size_kb=(1, 2), in_flight=(1, 2))
    assert [(cell.data_size_kb, cell.in_flight) for cell in result.cells] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert "in flight" in summary(result)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"num_keys": 0}, "--num-keys 0"),
        ({"rounds": 0}, "--rounds 0"),
        ({"warmup_rounds": -1}, "--warmup-rounds -1"),
        ({"in_flight": (1, 0)}, "--in-flight 0"),
        ({"data_size_kb": (0,)}, "--data-size-kb 0"),
        ({"lookup_max_hit_rate": 7}, "--lookup-max-hit-rate 7"),
        ({"lookup_max_hit_rate": float("nan")}, "--lookup-max-hit-rate nan"),
        ({"l1_align_bytes": 4096, "data_size_kb": (1,)}, "not a multiple"),
        ({"task_timeout": 0}, "--task-timeout"),
        ({"deadline": float("inf")}, "--deadline"),
        ({"mixed": 0.5, "in_flight": (1,)}, "leaves no task"),
        ({"only": "mixed", "in_flight": (1,)}, "leaves no task"),
        ({"only": "store", "keep": True}, "--keep"),
        ({"num_keys": 10**6, "data_size_kb": (1024,)}, "GiB of buffers"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        checked(L2Parameters(**options))


def test_all_bad_options_are_named_at_once() -> None:
    with pytest.raises(ScenarioError) as error:
        checked(L2Parameters(num_keys=0, rounds=0))
    assert len(str(error.value).splitlines()) == 2
