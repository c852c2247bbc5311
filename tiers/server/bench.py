"""The whole of `bench server`: connect, register, warm up, the measured phase, what has to be read back, clean up."""

import itertools
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from contract.errors import ServiceError
from tiers.host import description
from tiers.interfaces import CacheClient
from tiers.server.client_run import ClientRun, Context, Halted, Interrupted
from tiers.server.connect import Peer, require_fit
from tiers.server.http_api import HttpApiError, difference, within
from tiers.server.layout import Layout, make_layout
from tiers.server.parameters import RETRIEVE_SET, ServerParameters
from tiers.server.records import ALL_RANKS, OPERATIONS, Findings
from tiers.server.sequence import WARMUP_NUMBERS, Sequences
from tiers.statistics import summary
from tiers.verdict import Check, Status, Verdict, check, not_requested, verdict

BASELINE_REPEATS = 5
GUIDE_OPERATIONS = ("cold_lookup", "cold_store", "warm_lookup", "warm_retrieve")
GUIDE_STATISTICS = ("count", "mean", "min", "max", "p50", "p99")
DELETE_TRIES = 5
DELETE_PAUSE_SECONDS = 0.2


AskChunkSize = Callable[[], int]
"""Tokens per chunk, as the server answers. Raises TimeoutError: an answer is never made up."""


class MakeClient(Protocol):
    """Connects and registers one simulated engine: `lmcache_api`'s `Client` with its URL, or a stand-in."""

    def __call__(self, layout: Layout, *, model: str, first_instance: int) -> CacheClient: ...


@dataclass
class ServerResult:
    """Everything a run of `bench server` found."""

    parameters: ServerParameters
    peer: Peer
    layout: Layout
    findings: Findings = field(default_factory=Findings)
    blocks: int = 0
    chunk_size: int = 0
    baseline_gb_per_second: float | None = None
    """Copying a sequence's blocks within the same tensors, median of a few times."""
    counters: dict[str, dict[str, float]] = field(default_factory=dict)
    """Phase -> what the server's counters counted in it."""
    removed: tuple[int, int] | None = None
    """Own objects that were removed, and how many there should have been."""
    notes: list[str] = field(default_factory=list)
    halted: str | None = None
    started: float = 0.0
    seconds: float = 0.0
    """Length of the measured phase."""

    @property
    def checks(self) -> tuple[Check, ...]:
        return checks(self.parameters, self.findings)

    @property
    def verdict(self) -> Verdict:
        """A run without an end is over when it is interrupted; one with an end is not."""
        return verdict(self.checks, interrupted=self.findings.interrupted and self.parameters.bounded)


def run(
    parameters: ServerParameters,
    peer: Peer,
    ask_chunk_size: AskChunkSize,
    make_client: MakeClient,
    *,
    stop: threading.Event | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> ServerResult:
    """Measure a server. `say` gets the lines of progress.

    Raises ScenarioError and ServiceError for what cannot be run at all; failures after that are in the result.
    """
    layout = make_layout(
        parameters.kvcache_shape_spec,
        num_blocks=parameters.num_blocks,
        block_size=parameters.block_size,
        engine_driven=parameters.engine_driven,
        use_mla=parameters.use_mla,
    )
    result = ServerResult(parameters, peer, layout, started=time.time(), notes=[*peer.notes])
    if layout.warning:
        result.notes.append(layout.warning)
    for note in result.notes:
        say(f"WARNING: {note}")
    bench = _Bench(result, stop or threading.Event(), say)
    try:
        bench.connect(ask_chunk_size, make_client)
        bench.measure()
    except Halted as halt:
        result.halted = str(halt)
        result.findings.interrupted = bench.stop.is_set()
    finally:
        bench.finish()
    return result


class _Bench:
    def __init__(self, result: ServerResult, stop: threading.Event, say: Callable[[str], None]) -> None:
        self.result = result
        self.stop = stop
        self._say = say
        self._p = result.parameters
        self._clients: list[CacheClient] = []
        self._runs: list[ClientRun] = []
        # New in every run: no object of another run can be hit.
        self._model = f"hitlab-bench-{secrets.token_hex(6)}"
        self._sequences: Sequences
        self._until: float | None = None

    def connect(self, ask_chunk_size: AskChunkSize, make_client: MakeClient) -> None:
        p, result = self._p, self.result
        self._say(f"Connecting to LMCache MP Server at {p.rpc_url} (mode={p.mode}) ...")
        result.chunk_size = _chunk_size(p, ask_chunk_size)
        self._say(f"Server chunk_size = {result.chunk_size}")
        result.blocks = require_fit(p, result.layout, result.chunk_size, result.peer)
        self._say(f"Resolved KV shape spec: {result.layout.spec}")
        self._sequences = Sequences(
            p.seed,
            result.layout,
            result.blocks * result.layout.block_size,
            result.blocks,
            scattered=p.block_allocation == "random",
        )
        context = Context(
            parameters=p,
            layout=result.layout,
            sequences=self._sequences,
            findings=result.findings,
            stop=self.stop,
            halt=threading.Event(),
            begin=time.perf_counter(),
            http=result.peer.http,
            say=self._say,
        )
        first = secrets.randbelow(1 << 30)
        for number in range(p.concurrency):
            instance = first + number * p.tp_size
            try:
                client = make_client(result.layout, model=self._model, first_instance=instance)
            except TimeoutError as error:
                raise ServiceError(
                    f"{p.rpc_url} does not register {p.resolved_transfer_mode} clients: start lmcache server with "
                    f"--supported-transfer-mode {p.resolved_transfer_mode} (or auto)"
                ) from error
            self._clients.append(client)
            self._runs.append(ClientRun(context, client, number, instance))

    def measure(self) -> None:
        p = self._p
        if p.warmup:
            with self._counting("warmup"):
                self._each(lambda run, number: run.pair(_warmup(p, number), measured=False))
        self._baseline()
        if p.phase == "retrieve":
            with self._counting("setup"):
                self._each(lambda run, number: run.store(_dealt(p, number), measured=False))
        interruption: Interrupted | None = None
        begin = time.monotonic()
        self._until = None if p.duration is None else begin + p.duration
        try:
            with self._counting("measured"):
                self._each(self._measured)
        except Interrupted as halt:
            if p.phase != "store":
                raise
            interruption = halt
        finally:
            self.result.seconds = time.monotonic() - begin
        if p.phase == "store":
            # A store alone proves nothing, one that was interrupted no more than others.
            with self._counting("read back"):
                self._each(_read_back)
        if interruption is not None:
            raise interruption

    def _measured(self, run: ClientRun, number: int) -> None:
        p = self._p
        if p.phase == "pair":
            run.pair(self._timed(_dealt(p, number)))
        elif p.phase == "store":
            for sequence in self._timed(_dealt(p, number)):
                run.store([sequence], measured=True)
                self.stop.wait(p.interval)
        else:
            own = measured_numbers(run)
            rounds: Iterable[int] = own if p.duration is None and p.end is not None else itertools.cycle(own)
            run.retrieve(self._timed(rounds) if own else (), measured=True, pause=True)

    def _timed(self, numbers: Iterable[int]) -> Iterator[int]:
        """The numbers until the duration is over or, in a run without an end, the user ends it."""
        for number in numbers:
            if self._until is not None and time.monotonic() >= self._until:
                return
            yield number

    def _each(self, work: Callable[[ClientRun, int], None]) -> None:
        """Every client at once. The first that cannot go on stops the others."""
        with ThreadPoolExecutor(len(self._runs), thread_name_prefix="client") as pool:
            futures: list[Future[None]] = [
                pool.submit(self._guarded, work, run, number) for number, run in enumerate(self._runs)
            ]
            errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise next((error for error in errors if "another client" not in str(error)), errors[0])

    @staticmethod
    def _guarded(work: Callable[[ClientRun, int], None], run: ClientRun, number: int) -> None:
        try:
            work(run, number)
        except Interrupted:
            raise
        except BaseException:
            run.halt_all()
            raise

    @contextmanager
    def _counting(self, phase: str) -> Iterator[None]:
        """The server's own counters around a phase."""
        before = self._scrape()
        try:
            yield
        finally:
            after = self._scrape()
            if before is not None and after is not None:
                self.result.counters[phase] = difference(before, after)

    def _scrape(self) -> dict[str, float] | None:
        if self.result.peer.http is None:
            return None
        try:
            return self.result.peer.http.counters()
        except HttpApiError as error:
            self.result.notes.append(f"the server's counters could not be read ({error})")
            return None

    def finish(self) -> None:
        """Remove own objects, then leave the server as it was found."""
        try:
            if self._p.phase == "store":
                stored = sum(len(measured_numbers(run)) for run in self._runs)
                self.result.findings.unread = stored - self.result.findings.right - self.result.findings.wrong
            if self._clients and not self._p.keep and not self.result.findings.timeouts:
                self._remove()
        finally:
            for run in self._runs:
                run.close()
            for client in self._clients:
                client.close()

    def _remove(self) -> None:
        http, result = self.result.peer.http, self.result
        numbers = [number for run in self._runs for number in run.touched]
        if http is None:
            if numbers:
                result.notes.append(
                    "own objects stay: without an HTTP API they cannot be removed; their names are new"
                )
            return
        names = [
            name
            for number in numbers
            for name in self._clients[0].object_names(self._sequences.token_ids(number))
        ]
        try:
            config = http.config()
            tier = within(config, "storage_manager", "l2_adapter_config")
            if tier is None or within(config, "mp") is None:
                raise HttpApiError("/config: does not report its tiers")
            has_l2 = bool(within(tier, "adapters"))
            if not within(config, "mp", "separate_object_groups"):
                names = [name for name in names if name["object_group_id"] == 0]
            removed = 0
            for _ in range(DELETE_TRIES):
                deleted, locked = http.delete(names, "l1")
                removed += deleted
                if not locked:
                    break
                # A store that was interrupted is on its way in.
                time.sleep(DELETE_PAUSE_SECONDS)
            if has_l2:
                http.delete(names, "l2")
        except HttpApiError as error:
            result.notes.append(f"own objects stay: they could not be removed ({error})")
            return
        result.removed = (removed, len(names))

    def _baseline(self) -> None:
        source, destination = self._sequences.source(0), self._sequences.destination(0)
        times = []
        for _ in range(BASELINE_REPEATS):
            begin = time.perf_counter()
            self._clients[0].copy(0, source, destination)
            times.append(time.perf_counter() - begin)
        size = self.result.blocks * sum(self.result.layout.layer_bytes)
        self.result.baseline_gb_per_second = size / statistics.median(times) / 1e9


def _chunk_size(parameters: ServerParameters, ask: AskChunkSize) -> int:
    try:
        return ask()
    except TimeoutError as error:
        raise ServiceError(
            f"{parameters.rpc_url} reports no chunk size within {parameters.timeout:g} s: is an LMCache server of "
            "this version there, and not its HTTP port?"
        ) from error


def measured_numbers(run: ClientRun) -> list[int]:
    """What a client stored besides warm-up."""
    return [number for number in run.stored if number < WARMUP_NUMBERS]


def _read_back(run: ClientRun, _number: int) -> None:
    run.finishing = True
    run.retrieve(measured_numbers(run), measured=False)


def _dealt(parameters: ServerParameters, client: int) -> Iterable[int]:
    """The sequences of one of the clients: dealt round in turn, without an end where none is asked for."""
    p = parameters
    first = p.start + client
    if p.end is not None:
        return range(first, p.end, p.concurrency)
    if p.phase == "retrieve":
        return range(first, p.start + max(RETRIEVE_SET, p.concurrency), p.concurrency)
    return itertools.count(first, p.concurrency)


def _warmup(parameters: ServerParameters, client: int) -> Iterable[int]:
    first = WARMUP_NUMBERS + client * parameters.warmup
    return range(first, first + parameters.warmup)


def checks(parameters: ServerParameters, findings: Findings) -> tuple[Check, ...]:
    """What a run claims and how each claim stands."""
    f = findings
    made = [
        check("data", checked=f.verified, failures=f.mismatches),
        check("operations", checked=f.operations, failures=f.operation_failures + f.timeouts),
        check("cold start", checked=f.cold_lookups, failures=f.cold_hits),
        check("visibility", checked=f.warm_lookups, failures=f.warm_misses),
    ]
    if f.unread:
        detail = f"{f.unread} stored sequences were not read back"
        made.append(Check("read back", Status.NOT_RUN, f.right + f.wrong, 0, detail))
    if parameters.engine_driven or f.checksums_reason is not None or not f.server_checksums:
        made.append(not_requested("server checksums", f.checksums_reason or "nothing was retrieved"))
    else:
        made.append(check("server checksums", checked=f.server_checksums, failures=f.server_mismatches))
    return tuple(made)


def figures(result: ServerResult, operation: str, rank: int = ALL_RANKS) -> dict[str, Any] | None:
    """Statistics of an operation in milliseconds, with bytes and GB/s (10^9) where it moves any; None without samples."""
    chosen = [
        sample
        for sample in result.findings.samples
        if sample.measured and sample.operation == operation and sample.rank == rank
    ]
    times = summary([sample.seconds * 1000 for sample in chosen])
    if times is None:
        return None
    rows: dict[str, Any] = asdict(times)
    moved = sum(sample.bytes for sample in chosen)
    if moved:
        rows |= {"bytes": moved, "gb_per_second": moved / sum(sample.seconds for sample in chosen) / 1e9}
    return rows


def ranks(result: ServerResult, operation: str) -> list[int]:
    """Ranks with samples of their own."""
    return sorted(
        {
            sample.rank
            for sample in result.findings.samples
            if sample.operation == operation and sample.measured
        }
        - {ALL_RANKS}
    )


def document(result: ServerResult, versions: dict[str, str]) -> dict[str, Any]:
    """The result as JSON: parameters, versions, host, figures in total and per rank, counters, checks, verdict."""
    p, f = result.parameters, result.findings
    operations: dict[str, Any] = {}
    for operation in OPERATIONS:
        rows = figures(result, operation)
        if rows is not None:
            per_rank = {str(rank): figures(result, operation, rank) for rank in ranks(result, operation)}
            operations[operation] = rows | ({"by_rank": per_rank} if per_rank else {})
    return {
        "title": "Server Bench Result",
        "metrics": _guide_metrics(result),
        "kind": "server",
        "config": asdict(p)
        | {
            "transfer_mode": p.resolved_transfer_mode,
            "chunk_size": result.chunk_size,
            "blocks_per_sequence": result.blocks,
        },
        "versions": versions | ({"server": result.peer.version} if result.peer.version else {}),
        "host": description(),
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(result.started)),
        "seconds": result.seconds,
        "results": totals(result),
        "operations": operations,
        "memcpy_gb_per_second": result.baseline_gb_per_second,
        "server_counters": result.counters,
        "removed_objects": None if result.removed is None else result.removed[0],
        "notes": result.notes,
        "halted": result.halted,
        "checks": [asdict(item) for item in result.checks],
        "verdict": {"exit_code": int(result.verdict.exit_code), "line": result.verdict.line},
        "checksums_reason": f.checksums_reason,
    }


def _guide_metrics(result: ServerResult) -> dict[str, Any]:
    """The same figures in the sections and under the keys of LMCache's own bench."""
    p, total = result.parameters, totals(result)
    sections: dict[str, Any] = {
        "config": {
            "rpc_url": p.rpc_url,
            "mode": p.mode,
            "transfer_mode": p.transfer_mode,
            "num_tokens": p.num_tokens,
            "interval": p.interval,
            "concurrency": p.concurrency,
        },
        "results": total,
    }
    for operation in GUIDE_OPERATIONS:
        rows = figures(result, operation)
        if rows is not None:
            sections[operation] = {f"{operation}_{name}": rows[name] for name in GUIDE_STATISTICS}
    return sections


def totals(result: ServerResult) -> dict[str, Any]:
    f = result.findings
    return {
        "total_requests": f.sequences,
        "checksum_ok": f.right,
        "checksum_fail": f.wrong,
        "pass_rate": 100 * f.right / (f.right + f.wrong) if f.right + f.wrong else None,
        "requests_per_s": f.sequences / result.seconds if result.seconds else None,
    }
