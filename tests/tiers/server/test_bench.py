"""`bench server` on a server in memory: what it says of a right one, and of every kind of wrong one."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from contract.errors import ExitCode, ScenarioError, ServiceError
from tests.tiers.memory_server import CHUNK, MemoryClient, MemoryServer
from tiers.interfaces import CacheClient
from tiers.server.bench import ServerResult, document, run
from tiers.server.connect import Peer
from tiers.server.faults import FAULTS, FaultyClient
from tiers.server.layout import make_layout
from tiers.server.parameters import ServerParameters, checked
from tiers.server.sequence import Sequences
from tiers.server.text import summary
from tiers.verdict import Status

SPEC = "(2,32,4,2,8):float16:3"
MLA = "(1,32,4,1,16):bfloat16:3"
PEER = Peer(None, None, None, ())


def bench(
    server: MemoryServer,
    *,
    wrap: Callable[[CacheClient], CacheClient] = lambda client: client,
    stop: threading.Event | None = None,
    peer: Peer = PEER,
    clients: list[MemoryClient] | None = None,
    chunk: int = CHUNK,
    **options: Any,
) -> ServerResult:
    values = {
        "mode": "cpu",
        "transfer_mode": "engine_driven",
        "kvcache_shape_spec": SPEC,
        "num_tokens": 64,
        "end": 2,
        "interval": 0.0,
        "seed": 5,
        "timeout": 0.5,
    }
    parameters = checked(ServerParameters(**{**values, **options}))

    def make(layout: Any, *, model: str, first_instance: int) -> CacheClient:
        client = server.client(layout, model=model, first_instance=first_instance, ranks=parameters.tp_size)
        if clients is not None:
            clients.append(client)
        return wrap(client)

    return run(parameters, peer, lambda: chunk, make, stop=stop)


def status(result: ServerResult) -> dict[str, Status]:
    return {item.name: item.status for item in result.checks}


def test_a_right_server_is_called_right_and_left_without_locks_and_sessions() -> None:
    server, clients = MemoryServer(delay=0.002), []  # type: ignore[var-annotated]
    result = bench(server, tp_size=2, end=3, clients=clients)
    assert result.verdict.exit_code is ExitCode.DONE
    assert (server.locks, server.sessions) == (0, set())
    assert all(client.closed for client in clients)
    assert document(result, {})["results"] | {"requests_per_s": None} == {
        "total_requests": 3,
        "checksum_ok": 3,
        "checksum_fail": 0,
        "pass_rate": 100.0,
        "requests_per_s": None,
    }


def test_folded_ranks_are_stored_by_rank_0_and_read_by_all() -> None:
    result = bench(MemoryServer(), tp_size=2, use_mla=True)
    assert result.verdict.exit_code is ExitCode.DONE
    assert set(document(result, {})["operations"]["cold_store"]["by_rank"]) == {"0"}
    assert set(document(result, {})["operations"]["warm_retrieve"]["by_rank"]) == {"0", "1"}


@pytest.mark.parametrize("allocation", ["sequential", "random"])
def test_blocks_are_allocated_as_asked(allocation: str) -> None:
    assert bench(MemoryServer(), block_allocation=allocation).verdict.exit_code is ExitCode.DONE
    layout = make_layout(SPEC, engine_driven=True, use_mla=False)
    sequences = Sequences(5, layout, 64, 8, scattered=allocation == "random")
    source = sequences.source(3)
    assert (source == list(range(source[0], source[0] + 8))) == (allocation == "sequential")
    assert len(set(source)) == 8
    assert max(source) < layout.blocks // 2 <= min(sequences.destination(3))


def test_warm_up_is_called_warm_up() -> None:
    lines: list[str] = []
    values = {
        "mode": "cpu",
        "kvcache_shape_spec": SPEC,
        "num_tokens": 64,
        "end": 1,
        "interval": 0.0,
        "seed": 5,
    }
    parameters = checked(ServerParameters(**values))
    server = MemoryServer()

    def make(layout: Any, *, model: str, first_instance: int) -> CacheClient:
        return server.client(layout, model=model, first_instance=first_instance, ranks=1)

    run(parameters, PEER, lambda: CHUNK, make, say=lines.append)
    assert any(line.startswith("[warm-up 0] LOOKUP cold") for line in lines)
    assert any(line.startswith("[seq=0] LOOKUP cold") for line in lines)
    assert not any("1099511627776" in line for line in lines)


def test_the_keys_of_the_original_are_there_beside_ours() -> None:
    metrics = document(bench(MemoryServer(), end=3), {})["metrics"]
    assert list(metrics) == ["config", "results", "cold_lookup", "cold_store", "warm_lookup", "warm_retrieve"]
    assert set(metrics["config"]) == {
        "rpc_url",
        "mode",
        "transfer_mode",
        "num_tokens",
        "interval",
        "concurrency",
    }
    assert set(metrics["results"]) >= {"total_requests", "checksum_ok", "checksum_fail", "pass_rate"}
    for name in list(metrics)[2:]:
        assert list(metrics[name]) == [
            f"{name}_{key}" for key in ("count", "mean", "min", "max", "p50", "p99")
        ]


def test_bytes_are_those_of_the_blocks_per_rank_and_in_total() -> None:
    result = bench(MemoryServer(), tp_size=2, end=4)
    store = document(result, {})["operations"]["cold_store"]
    per_sequence = 16 * 3 * (2 * 4 * 2 * 8 * 2)  # blocks x layers x bytes of a block, from the spec by hand
    assert store["count"] == 4
    assert store["bytes"] == 4 * 2 * per_sequence
    assert store["by_rank"]["1"]["bytes"] == 4 * per_sequence
    assert store["gb_per_second"] > 0
    assert result.baseline_gb_per_second is not None


def test_visibility_is_measured_and_is_not_the_stores_latency() -> None:
    result = bench(MemoryServer(delay=0.05), end=3)
    operations = document(result, {})["operations"]
    assert operations["store_to_visible"]["p50"] >= 49
    assert operations["cold_store"]["p50"] < 49
    assert result.verdict.exit_code is ExitCode.DONE


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("phase", ["pair", "store", "retrieve"])
def test_every_fault_is_red(fault: str, phase: str) -> None:
    result = bench(
        MemoryServer(),
        wrap=lambda inner: FaultyClient(inner, fault),
        tp_size=2,
        phase=phase,
        timeout=0.2,
        end=3,
    )
    assert result.verdict.exit_code is ExitCode.REQUESTS_FAILED, result.checks


def test_swapped_ranks_are_called_that() -> None:
    lines: list[str] = []
    parameters = checked(
        ServerParameters(
            mode="cpu",
            kvcache_shape_spec=SPEC,
            num_tokens=64,
            end=1,
            interval=0,
            tp_size=2,
            warmup=0,
            timeout=1,
        )
    )
    server = MemoryServer()
    run(
        parameters,
        PEER,
        lambda: CHUNK,
        lambda layout, **names: FaultyClient(server.client(layout, ranks=2, **names), "swapped ranks"),
        say=lines.append,
    )
    assert any("CHECKSUM MISMATCH" in line and "holds the bytes of rank 1" in line for line in lines)


@pytest.mark.parametrize("operation", ["store", "retrieve"])
def test_an_operation_that_fails_is_a_failure_and_no_figure(operation: str) -> None:
    server = MemoryServer()
    server.fails.add(operation)
    result = bench(server, warmup=0)
    assert result.verdict.exit_code is ExitCode.REQUESTS_FAILED
    assert status(result)["operations"] is Status.FAILED
    assert (
        f"{'cold' if operation == 'store' else 'warm'}_{operation}" not in document(result, {})["operations"]
    )


class RemembersModels(MemoryServer):
    """Objects have no model: another run's are found."""

    def client(self, layout: Any, *, model: str, first_instance: int, ranks: int = 1) -> MemoryClient:
        return super().client(layout, model="", first_instance=first_instance, ranks=ranks)


def test_a_cold_phase_that_finds_hits_is_refused() -> None:
    server = RemembersModels()
    assert bench(server).verdict.exit_code is ExitCode.DONE
    again = bench(server)
    assert again.verdict.exit_code is ExitCode.REQUESTS_FAILED
    assert status(again)["cold start"] is Status.FAILED
    assert "cold phase found hits" in str(again.halted)
    assert server.locks == 0


def test_two_runs_on_one_server_do_not_meet() -> None:
    server = MemoryServer()
    assert bench(server).verdict.exit_code is ExitCode.DONE
    assert bench(server).verdict.exit_code is ExitCode.DONE
    other_shape = bench(server, kvcache_shape_spec="(2,32,4,4,8):float16:3")
    assert other_shape.verdict.exit_code is ExitCode.DONE


def test_mla_is_written_by_rank_0_and_read_by_all() -> None:
    server = MemoryServer()
    result = bench(server, kvcache_shape_spec=MLA, tp_size=3, end=2)
    operations = document(result, {})["operations"]
    assert list(operations["warm_retrieve"]["by_rank"]) == ["0", "1", "2"]
    assert list(operations["cold_store"]["by_rank"]) == ["0"]
    assert result.verdict.exit_code is ExitCode.DONE


def test_clients_at_once_deal_the_sequences_among_them() -> None:
    result = bench(MemoryServer(), concurrency=3, end=7)
    done = sorted(
        (sample.sequence, sample.client)
        for sample in result.findings.samples
        if sample.measured and sample.operation == "warm_lookup"
    )
    assert done == [(number, number % 3) for number in range(7)]
    assert result.verdict.exit_code is ExitCode.DONE


@pytest.mark.parametrize("phase", ["store", "retrieve"])
def test_phases_measure_their_own_operations_only(phase: str) -> None:
    result = bench(MemoryServer(), phase=phase, end=4)
    measured = set(document(result, {})["operations"])
    assert measured == (
        {"cold_lookup", "cold_store", "store_to_visible"}
        if phase == "store"
        else {"warm_lookup", "warm_retrieve"}
    )
    assert document(result, {})["results"]["checksum_ok"] == 4
    assert result.verdict.exit_code is ExitCode.DONE


def test_a_duration_ends_the_measured_phase() -> None:
    begin = time.monotonic()
    result = bench(MemoryServer(), end=None, duration=0.3)
    assert 0.3 <= result.seconds < 1.5
    assert time.monotonic() - begin < 3
    assert result.verdict.exit_code is ExitCode.DONE
    assert result.findings.sequences > 1


def stop_after(seconds: float) -> threading.Event:
    stop = threading.Event()
    threading.Timer(seconds, stop.set).start()
    return stop


@pytest.mark.parametrize("phase", ["pair", "store", "retrieve"])
def test_a_run_without_an_end_is_good_when_what_it_did_was_right(phase: str) -> None:
    result = bench(MemoryServer(), end=None, phase=phase, stop=stop_after(0.3))
    assert result.verdict.exit_code is ExitCode.DONE
    assert result.findings.right > 0


def test_a_run_without_an_end_that_checked_nothing_is_not_good() -> None:
    stop = threading.Event()
    stop.set()
    assert bench(MemoryServer(), end=None, stop=stop).verdict.exit_code is ExitCode.INCONCLUSIVE


def test_a_run_with_an_end_that_is_interrupted_says_130() -> None:
    assert bench(MemoryServer(), end=10**6, stop=stop_after(0.2)).verdict.exit_code is ExitCode.INTERRUPTED


class DiesAfter(MemoryServer):
    """Gone with the answer to that call, or in front of it where the call itself is what waits."""

    def __init__(self, calls: int, name: str) -> None:
        super().__init__()
        self._left, self._name = calls, name

    def client(self, layout: Any, *, model: str, first_instance: int, ranks: int = 1) -> MemoryClient:
        client = super().client(layout, model=model, first_instance=first_instance, ranks=ranks)
        asked = getattr(client, self._name)

        def call(*arguments: Any) -> Any:
            self._left -= 1
            self.answers = self._left > 0
            return asked(*arguments)

        setattr(client, self._name, call)
        return client


@pytest.mark.parametrize("name", ["lookup", "store", "retrieve", "end_session"])
@pytest.mark.parametrize("clients", [1, 2])
def test_a_server_that_dies_ends_the_run_red(clients: int, name: str) -> None:
    result = bench(DiesAfter(9 * clients, name), end=50, concurrency=clients)
    assert result.verdict.exit_code is ExitCode.REQUESTS_FAILED
    assert "no answer within" in str(result.halted)
    assert result.findings.right > 0


def test_silence_and_refusal_at_the_start_are_one_line() -> None:
    def silent() -> int:
        raise TimeoutError

    def refuses(layout: Any, *, model: str, first_instance: int) -> CacheClient:
        raise TimeoutError

    parameters = checked(ServerParameters(mode="cpu", kvcache_shape_spec=SPEC, num_tokens=64, end=1))
    with pytest.raises(ServiceError, match="reports no chunk size"):
        run(parameters, PEER, silent, refuses)
    with pytest.raises(ServiceError, match="--supported-transfer-mode engine_driven"):
        run(parameters, PEER, lambda: CHUNK, refuses)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"num_tokens": 31}, "nothing would be stored"),
        ({"num_tokens": 96}, "need NB of at least 48"),
        ({"chunk": 30}, "must divide"),
        ({"peer": Peer(None, None, 1000, ())}, "--l1-size-gb"),
        ({"peer": Peer(None, None, 20000, ()), "phase": "store", "end": 100}, "lower --end"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_do(options: dict[str, Any], problem: str) -> None:
    with pytest.raises((ScenarioError, ServiceError), match=problem):
        bench(MemoryServer(), **options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tp_size": 0}, "--tp-size 0"),
        ({"end": 3, "start": 3}, "--end 3"),
        ({"start": -1}, "--start -1"),
        ({"interval": -1}, "--interval"),
        ({"interval": float("nan")}, "--interval"),
        ({"duration": 0}, "--duration"),
        ({"concurrency": 0}, "--concurrency"),
        ({"mode": "tpu"}, "--mode tpu"),
        ({"phase": "all"}, "--phase all"),
        ({"transfer_mode": "fast"}, "--transfer-mode fast"),
        ({"num_tokens": 0}, "--num-tokens 0"),
        ({"warmup": -1}, "--warmup"),
        ({"timeout": 0}, "--timeout"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        checked(ServerParameters(**options))


def test_the_summary_has_the_guides_sections_and_the_verdict() -> None:
    text = summary(bench(MemoryServer(), tp_size=2))
    for name in (
        "Configuration",
        "Results",
        "Cold Lookup (ms)",
        "Cold Store (ms)",
        "Warm Lookup (ms)",
        "Warm Retrieve (ms)",
    ):
        assert f" {name} " in text
    for row in ("Total requests:", "Checksum OK:", "Checksum FAIL:", "Pass rate (%):", "p99:", "Verdict:"):
        assert row in text
