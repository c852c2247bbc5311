"""One client's way through its sequences: store, wait until it is visible, look up, retrieve, compare."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tiers.interfaces import CacheClient, Request
from tiers.payload import POISON, difference
from tiers.server.http_api import HttpApi, HttpApiError
from tiers.server.layout import Layout
from tiers.server.parameters import ServerParameters
from tiers.server.records import ALL_RANKS, Findings, Sample
from tiers.server.sequence import Sequences, named


class Halted(Exception):  # noqa: N818 - a way to end: what was measured so far stays
    """The run cannot go on."""


class Interrupted(Halted):
    """The user ended the run."""


@dataclass(frozen=True)
class Context:
    """What all clients of a run share. `begin` is the run's zero on `time.perf_counter`."""

    parameters: ServerParameters
    layout: Layout
    sequences: Sequences
    findings: Findings
    stop: threading.Event
    """The user wants an end."""
    halt: threading.Event
    """A client cannot go on."""
    begin: float
    http: HttpApi | None
    say: Callable[[str], None]


class ClientRun:
    """Number `number` of the run's clients. `first_instance` is what its rank 0 is registered as."""

    def __init__(self, context: Context, client: CacheClient, number: int, first_instance: int) -> None:
        self._context = context
        self._client = client
        self._number = number
        self._first_instance = first_instance
        self._ranks = list(range(client.ranks))
        self._writers = [0] if context.layout.shared_between_ranks else self._ranks
        self._fan_out = ThreadPoolExecutor(client.ranks, thread_name_prefix=f"ranks-{number}")
        self._chunks = context.sequences.tokens // client.chunk_size
        self.stored: list[int] = []
        self.touched: list[int] = []
        """Sequences that a store was begun for: what there may be to remove."""
        self.finishing = False
        """Read back although the user wants an end."""
        self._lookups = 0

    def halt_all(self) -> None:
        self._context.halt.set()

    def close(self) -> None:
        self._fan_out.shutdown(wait=False, cancel_futures=True)

    # --- phases ---

    def pair(self, numbers: Iterable[int], *, measured: bool = True) -> None:
        """Store and retrieve each sequence."""
        for number in numbers:
            self.store([number], measured=measured)
            self._pause()
            if self.stored and self.stored[-1] == number:
                self.retrieve([number], measured=measured)
            self._pause()

    def store(self, numbers: Iterable[int], *, measured: bool) -> None:
        """Store each sequence and wait until it is visible; `stored` grows by those that every writer stored."""
        for number in numbers:
            self._require_time()
            if measured:
                with self._context.findings.lock:
                    self._context.findings.sequences += 1
            if self._store(number, measured):
                self.stored.append(number)

    def retrieve(self, numbers: Iterable[int], *, measured: bool, pause: bool = False) -> None:
        for number in numbers:
            self._require_time()
            if measured and self._context.parameters.phase == "retrieve":
                with self._context.findings.lock:
                    self._context.findings.sequences += 1
            self._retrieve(number, measured)
            if pause:
                self._pause()

    # --- a sequence ---

    def _store(self, number: int, measured: bool) -> bool:
        context, findings = self._context, self._context.findings
        source = context.sequences.source(number)
        for rank in self._writers:
            for layer in range(len(context.layout.layers)):
                self._client.write(rank, layer, source, context.sequences.content(number, rank, layer))
        request = self._request(number, "cold")
        found, seconds = self._lookup(request, "cold_lookup", number, measured)
        self._say(number, f"LOOKUP cold:  {found}/{self._chunks} chunks hit ({seconds * 1000:.2f} ms)")
        with findings.lock:
            findings.cold_lookups += 1
            if found:
                findings.cold_hits.append(
                    f"{named(number)}: {found} of {self._chunks} chunks were there already"
                )
        if found:
            self._end(request, locked=True)
            raise Halted(
                f"the cold phase found hits ({named(number)}): its figures would not be those of a store"
            )
        self.touched.append(number)
        total, good = self._fan(
            "cold_store",
            number,
            self._writers,
            lambda rank: self._client.store(rank, request, source, context.parameters.timeout),
            measured,
        )
        stored = time.perf_counter()
        self._end(request)
        if not good:
            self._context.say(f"[{named(number)}] ERROR: STORE failed")
            return False
        self._say(number, f"STORE:        {self._chunks} chunks stored ({total * 1000:.2f} ms)")
        self._await_visible(number, stored, measured)
        return True

    def _await_visible(self, number: int, stored: float, measured: bool) -> None:
        """A store is answered before others can see it: how long that takes is a figure of its own."""
        context = self._context
        while True:
            probe = self._request(number, "visible")
            found = self._ask(probe)
            now = time.perf_counter()
            self._end(probe, locked=found > 0)
            if found == self._chunks:
                self._sample("store_to_visible", number, ALL_RANKS, stored, now - stored, 0, measured)
                return
            if now - stored > context.parameters.timeout:
                message = f"{named(number)}: {found} of {self._chunks} chunks visible {now - stored:.1f} s after storing"
                with context.findings.lock:
                    context.findings.warm_lookups += 1
                    context.findings.warm_misses.append(message)
                raise Halted(message)
            self._require_time()

    def _retrieve(self, number: int, measured: bool) -> None:
        context, findings = self._context, self._context.findings
        destination = context.sequences.destination(number)
        for rank in self._ranks:
            for layer, size in enumerate(self._client.layer_bytes):
                poison = np.full((len(destination), size), POISON, dtype=np.uint8)
                self._client.write(rank, layer, destination, poison)
        request = self._request(number, "warm")
        found, seconds = self._lookup(request, "warm_lookup", number, measured)
        self._say(number, f"LOOKUP warm:  {found}/{self._chunks} chunks hit ({seconds * 1000:.2f} ms)")
        with findings.lock:
            findings.warm_lookups += 1
            if found != self._chunks:
                findings.warm_misses.append(f"{named(number)}: {found} of {self._chunks} chunks hit")
        if found != self._chunks:
            self._end(request, locked=found > 0)
            return
        total, good = self._fan(
            "warm_retrieve",
            number,
            self._ranks,
            lambda rank: self._client.retrieve(rank, request, destination, context.parameters.timeout),
            measured,
        )
        self._end(request)
        if not good:
            self._context.say(f"[{named(number)}] ERROR: RETRIEVE failed")
            return
        self._say(number, f"RETRIEVE:     {self._chunks} chunks retrieved ({total * 1000:.2f} ms)")
        self._verify(number, destination, measured)

    def _verify(self, number: int, destination: Sequence[int], measured: bool) -> None:
        """Every byte of every block, layer and rank."""
        findings = self._context.findings
        problems = [
            problem
            for rank in self._ranks
            if (problem := self._wrong_bytes(number, rank, destination)) is not None
        ]
        problems += self._server_side(number, destination)
        with findings.lock:
            findings.verified += 1
            if measured or self.finishing:
                findings.right += not problems
                findings.wrong += bool(problems)
            if problems:
                findings.mismatches.append(f"{named(number)}: {problems[0]}")
        if problems:
            self._context.say(f"[{named(number)}] CHECKSUM MISMATCH: " + "; ".join(problems))
        else:
            self._say(number, "CHECKSUM MATCH OK")

    def _wrong_bytes(self, number: int, rank: int, destination: Sequence[int]) -> str | None:
        """The first block of a rank that is not what was stored, and whose it is instead."""
        sequences = self._context.sequences
        for layer in range(len(self._client.layer_bytes)):
            found = self._client.read(rank, layer, destination)
            expected = sequences.content(number, rank, layer)
            for block in range(len(destination)):
                problem = difference(found[block], expected[block])
                if problem is None:
                    continue
                for other in self._ranks:
                    if (
                        other != rank
                        and difference(found[block], sequences.content(number, other, layer)[block]) is None
                    ):
                        problem = f"holds the bytes of rank {other}"
                return f"rank {rank} layer {layer} block {block}: {problem}"
        return None

    def _server_side(self, number: int, destination: Sequence[int]) -> list[str]:
        """What the server sees in the registered tensors, by its own checksums."""
        context, findings = self._context, self._context.findings
        if context.parameters.engine_driven:
            reason = "not offered by this server: the worker copies, the server has no tensors to hash"
        elif context.http is None:
            reason = "not offered by this server: no HTTP API"
        else:
            return self._compare_checksums(context.http, number, destination)
        with findings.lock:
            findings.checksums_reason = reason
        return []

    def _compare_checksums(self, http: HttpApi, number: int, destination: Sequence[int]) -> list[str]:
        findings = self._context.findings
        blocks_per_chunk = self._client.chunk_size // self._context.layout.block_size
        problems: list[str] = []
        for rank in self._ranks:
            try:
                answered = http.checksums(self._first_instance + rank, destination, blocks_per_chunk)
            except HttpApiError as error:
                answered, reason = None, f"the server's checksums failed ({error})"
            else:
                reason = "not offered by this server"
            with findings.lock:
                if answered is None:
                    findings.checksums_reason = reason
                    return problems
                findings.server_checksums += 1
                if answered != self._context.sequences.checksums(number, rank, blocks_per_chunk):
                    problems.append(f"rank {rank}: the server's checksums differ from what was stored")
                    findings.server_mismatches.append(f"{named(number)} rank {rank}")
        return problems

    # --- calls ---

    def _request(self, number: int, kind: str) -> Request:
        self._lookups += 1
        sequences = self._context.sequences
        return Request(
            f"hitlab-{sequences.seed:x}-{self._number}-{number}-{kind}-{self._lookups}",
            sequences.token_ids(number),
        )

    def _lookup(self, request: Request, operation: str, number: int, measured: bool) -> tuple[int, float]:
        begin = time.perf_counter()
        found = self._ask(request)
        seconds = time.perf_counter() - begin
        self._sample(operation, number, ALL_RANKS, begin, seconds, 0, measured)
        return found, seconds

    def _ask(self, request: Request) -> int:
        with self._context.findings.lock:
            self._context.findings.operations += 1
        try:
            return self._client.lookup(request, self._context.parameters.timeout)
        except TimeoutError as error:
            raise self._timeout(f"lookup of {request.request_id}") from error

    def _end(self, request: Request, *, locked: bool = False) -> None:
        """The request is over; `locked`: what its lookup found is still held for a reader that does not come."""
        timeout = self._context.parameters.timeout
        try:
            if locked:
                self._client.release(request, timeout)
            self._client.end_session(request.request_id, timeout)
        except TimeoutError as error:
            raise self._timeout(f"end of {request.request_id}") from error

    def _fan(
        self, operation: str, number: int, ranks: Sequence[int], call: Callable[[int], bool], measured: bool
    ) -> tuple[float, bool]:
        """The call on every rank at once, as workers of an engine do; seconds until the last one is done, and whether
        all succeeded. What failed is no sample."""
        size = self._context.sequences.blocks * sum(self._client.layer_bytes)

        def one(rank: int) -> tuple[int, float, float, bool]:
            begin = time.perf_counter()
            done = call(rank)
            return rank, begin, time.perf_counter() - begin, done

        begin = time.perf_counter()
        try:
            answers = [future.result() for future in [self._fan_out.submit(one, rank) for rank in ranks]]
        except TimeoutError as error:
            raise self._timeout(f"{named(number)} {operation}") from error
        total = time.perf_counter() - begin
        good = True
        for rank, at, seconds, done in answers:
            with self._context.findings.lock:
                self._context.findings.operations += 1
                if not done:
                    good = False
                    self._context.findings.operation_failures.append(
                        f"{named(number)} rank {rank}: {operation} failed"
                    )
            if done:
                self._sample(operation, number, rank, at, seconds, size, measured)
        if good:
            self._sample(operation, number, ALL_RANKS, begin, total, size * len(ranks), measured)
        return total, good

    def _timeout(self, what: str) -> Halted:
        message = f"{what}: no answer within {self._context.parameters.timeout:g} s"
        with self._context.findings.lock:
            self._context.findings.timeouts.append(message)
        return Halted(message)

    def _sample(
        self, operation: str, number: int, rank: int, at: float, seconds: float, size: int, measured: bool
    ) -> None:
        sample = Sample(
            self._number, number, operation, rank, at - self._context.begin, seconds, size, measured
        )
        with self._context.findings.lock:
            self._context.findings.samples.append(sample)

    def _pause(self) -> None:
        self._context.stop.wait(self._context.parameters.interval)

    def _require_time(self) -> None:
        if self._context.halt.is_set():
            raise Halted("another client could not go on")
        if self._context.stop.is_set() and not self.finishing:
            raise Interrupted("interrupted")

    def _say(self, number: int, text: str) -> None:
        self._context.say(f"[{named(number)}] {text}")
