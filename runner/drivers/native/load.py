"""Load: a fixed number of requests in flight (closed loop), or requests that arrive at their times (open loop)."""

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import uvloop

from contract.errors import DriverError
from contract.foreign_text import presentable
from contract.records import RequestRecord
from contract.redaction import Redactor
from contract.trust import SYSTEM, Trust, tls_problem
from runner.drivers.native.answer import Answer
from runner.drivers.native.connection import Connection, Endpoint
from runner.drivers.native.lanes import LaneQueue, OutgoingRequest

RANK_HEADER: Final = "X-data-parallel-rank"
_LONGEST_ERROR: Final = 300
_FIRST_BACKOFF_SECONDS: Final = 0.1
_LONGEST_BACKOFF_SECONDS: Final = 2.0
_STOP_POLL_SECONDS: Final = 0.05
_SECRET_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "api-key", "x-api-key", "cookie"})
_WORTH_A_RETRY: Final = frozenset({"connect", "reset", "timeout", "stream_error"})
_WORTH_A_RETRY_STATUS: Final = frozenset({408, 429})

OnRecord = Callable[[RequestRecord], None]


class LoadProgress(NamedTuple):
    """Requests so far; `failed` counts those whose last attempt failed."""

    started: int
    finished: int
    failed: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """What the load was, beside the records.

    Attributes:
        started: requests begun. finished: answered in full. failed: last attempt failed (aborted ones included).
        aborted: stopped by us while in flight.
        attempts: records made. retried: attempts beyond the first.
        reopened_connections: requests sent again at once because a kept connection had been closed by the server
            before it read them (not retries, see `Connection.exchange`).
        wall_seconds: from the first start to the last end.
        mean_in_flight: in-flight time of all requests over `wall_seconds`, the concurrency that was reached.
        waited_for_lane: requests that could not start in their turn because their lane was busy.
        mean_while_waiting: requests in flight, on average over the time in which others were left to start, from when
            all slots were taken for the first time; None when no other was left then, and in an open loop, where the
            time of arrival decides.
        lane_wait_seconds: slot-seconds that stayed empty while requests waited for their lanes.
        stopped: the stop event ended it.
        withdrawn: requests of an open loop that had not started when `start_within_seconds` was over.
        mean_lag_seconds, max_lag_seconds: how long after its time of arrival a request started, over those that did;
            0 in a closed loop.
    """

    started: int
    finished: int
    failed: int
    aborted: int
    attempts: int
    retried: int
    reopened_connections: int
    wall_seconds: float
    mean_in_flight: float
    max_in_flight: int
    waited_for_lane: int
    lane_wait_seconds: float
    stopped: bool
    mean_while_waiting: float | None = None
    withdrawn: int = 0
    mean_lag_seconds: float = 0.0
    max_lag_seconds: float = 0.0


class _InFlight:
    """How many requests run, integrated over time."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._since_ns: int | None = None
        self._first_ns = self._last_ns = 0
        self._busy_ns = self._empty_ns = 0
        self._left_ns = self._busy_while_left_ns = 0
        self.now = self.highest = 0

    def change(self, by: int, *, waiting: int, left: bool) -> None:
        """One request more or less. Since the last change `waiting` requests wait for a lane, and some or none are left
        to start."""
        now_ns = time.perf_counter_ns()
        if self._since_ns is None:
            self._first_ns = now_ns
        else:
            passed = now_ns - self._since_ns
            self._busy_ns += passed * self.now
            # A slot is empty because of lanes at most for as many requests as wait.
            self._empty_ns += passed * min(self._slots - self.now, waiting)
            if left:
                self._left_ns += passed
                self._busy_while_left_ns += passed * self.now
        self._since_ns = self._last_ns = now_ns
        self.now += by
        if self.now == self._slots > self.highest:
            self._left_ns = self._busy_while_left_ns = 0  # filling the slots takes its time once
        self.highest = max(self.highest, self.now)

    @property
    def wall_seconds(self) -> float:
        return (self._last_ns - self._first_ns) / 1e9

    @property
    def mean(self) -> float:
        wall_ns = self._last_ns - self._first_ns
        return self._busy_ns / wall_ns if wall_ns else 0.0

    @property
    def mean_while_left(self) -> float | None:
        return self._busy_while_left_ns / self._left_ns if self._left_ns else None

    @property
    def empty_seconds(self) -> float:
        return self._empty_ns / 1e9


class _Load:
    """State of one load. A task is a slot; it takes requests one after another and ends when none may start.

    In a closed loop slots read the requests themselves; in an open loop a task offers each at its time of arrival.
    """

    def __init__(
        self,
        requests: Iterable[OutgoingRequest],
        *,
        endpoint: Endpoint,
        headers: Mapping[str, str],
        api_key: str | None,
        concurrency: int,
        timeout_seconds: float | None,
        retries: int,
        on_record: OnRecord,
        on_progress: Callable[[LoadProgress], None] | None,
        arrivals: Iterable[float] | None,
        start_within_seconds: float | None,
    ) -> None:
        sent_headers = dict(headers)
        if api_key:
            sent_headers = {n: v for n, v in sent_headers.items() if n.lower() != "authorization"}
            sent_headers["Authorization"] = f"Bearer {api_key}"
        self._head = endpoint.head(sent_headers)
        self._redact = Redactor(*_secrets(sent_headers))
        self._endpoint = endpoint
        self._concurrency = concurrency
        self._timeout_seconds = timeout_seconds
        self._attempts_allowed = retries + 1
        self._on_record = on_record
        self._on_progress = on_progress
        self._queue = LaneQueue(() if arrivals is not None else requests, concurrency)
        self._arrivals = None if arrivals is None else zip(requests, arrivals, strict=False)
        self._open_loop = arrivals is not None
        self._arrived_ns: dict[int, int] = {}
        self._start_within_seconds = start_within_seconds
        self._closed = False
        self._lag_ns = self._longest_lag_ns = 0
        self._idle: list[Connection] = []
        self._working: set[asyncio.Task[None]] = set()
        self._slots = 0
        self._in_flight = _InFlight(concurrency)
        self._group: asyncio.TaskGroup
        self._stopping = False
        self._started = self._finished = self._failed = self._aborted = 0
        self._attempts = self._retried = self._reopened = 0

    async def run(self, stop: asyncio.Event) -> LoadSummary:
        try:
            async with asyncio.TaskGroup() as self._group:
                helpers = [self._group.create_task(self._watch(stop))]
                if self._on_progress is not None:
                    helpers.append(self._group.create_task(self._report(self._on_progress)))
                self._drained = asyncio.get_running_loop().create_future()
                if self._arrivals is not None:
                    helpers.append(self._group.create_task(self._let_arrive(self._arrivals)))
                self._fill()
                self._check_drained()
                await self._drained
                for helper in helpers:
                    helper.cancel()
        except BaseExceptionGroup as group:
            # The first failure cancelled the rest; it is the one to tell.
            first = group.exceptions[0]
            raise first from first.__cause__
        finally:
            for connection in self._idle:
                connection.close()
        if self._on_progress is not None:
            self._on_progress(self._progress())
        return LoadSummary(
            started=self._started,
            finished=self._finished,
            failed=self._failed,
            aborted=self._aborted,
            attempts=self._attempts,
            retried=self._retried,
            reopened_connections=self._reopened,
            wall_seconds=self._in_flight.wall_seconds,
            mean_in_flight=self._in_flight.mean,
            max_in_flight=self._in_flight.highest,
            waited_for_lane=self._queue.have_waited,
            lane_wait_seconds=self._in_flight.empty_seconds,
            stopped=self._stopping,
            mean_while_waiting=None if self._open_loop else self._in_flight.mean_while_left,
            withdrawn=len(self._arrived_ns),
            mean_lag_seconds=self._lag_ns / self._started / 1e9 if self._started else 0.0,
            max_lag_seconds=self._longest_lag_ns / 1e9,
        )

    # Arrivals

    async def _let_arrive(self, arrivals: Iterable[tuple[OutgoingRequest, float]]) -> None:
        """Offer every request at its time, however the others are doing; then wait for the end of the time to start."""
        begin_ns = time.perf_counter_ns()

        async def until(seconds: float) -> None:
            left = begin_ns / 1e9 + seconds - time.perf_counter_ns() / 1e9
            if left > 0:
                await asyncio.sleep(left)

        for request, offset in arrivals:
            if self._start_within_seconds is not None and offset >= self._start_within_seconds:
                break
            await until(offset)
            if self._stopping:
                break
            self._arrived_ns[request.position] = begin_ns + int(offset * 1e9)
            self._queue.offer(request)
            self._fill()
        self._arrivals = None
        self._check_drained()
        if self._start_within_seconds is not None:
            await until(self._start_within_seconds)
            self._closed = True
            self._check_drained()

    def _note_lag(self, request: OutgoingRequest) -> None:
        arrived_ns = self._arrived_ns.pop(request.position, None)
        if arrived_ns is not None:
            lag_ns = time.perf_counter_ns() - arrived_ns
            self._lag_ns += lag_ns
            self._longest_lag_ns = max(self._longest_lag_ns, lag_ns)

    # Slots

    def _fill(self) -> None:
        """Start every request that may start, up to the number of slots."""
        while self._slots < self._concurrency and (request := self._take()) is not None:
            self._slots += 1
            self._spawn(self._slot(request))

    def _spawn(self, slot: Coroutine[Any, Any, None]) -> None:
        self._group.create_task(slot)

    def _take(self) -> OutgoingRequest | None:
        return None if self._stopping or self._closed else self._queue.take()

    async def _slot(self, first: OutgoingRequest) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in a task
        request: OutgoingRequest | None = first
        try:
            while request is not None and not self._stopping:
                self._in_flight.change(+1, waiting=self._queue.waiting, left=self._queue.left)
                self._started += 1
                self._note_lag(request)
                self._working.add(task)
                try:
                    await self._serve(request)
                finally:
                    self._working.discard(task)
                    self._in_flight.change(-1, waiting=self._queue.waiting, left=self._queue.left)
                    self._queue.release(request)
                request = self._take()
                # The lane that moved on may have made room to read further.
                self._fill()
        finally:
            self._slots -= 1
            self._check_drained()

    def _check_drained(self) -> None:
        over = self._arrivals is None or self._stopping or self._closed
        if self._slots == 0 and over and not self._drained.done():
            self._drained.set_result(None)

    async def _watch(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stopping = True
        for task in list(self._working):
            task.cancel()
        self._check_drained()

    async def _report(self, on_progress: Callable[[LoadProgress], None]) -> None:
        while True:
            on_progress(self._progress())
            await asyncio.sleep(0.5)

    def _progress(self) -> LoadProgress:
        return LoadProgress(self._started, self._finished, self._failed, self._in_flight.now)

    # One request

    async def _serve(self, request: OutgoingRequest) -> None:
        """All attempts of a request. Its lane stays busy between them."""
        made = request.body() if callable(request.body) else request.body
        body = (made,) if isinstance(made, bytes) else made
        head = self._head
        if request.dp_rank is not None:
            head += b"%s: %d\r\n" % (RANK_HEADER.encode(), request.dp_rank)
        head += b"Content-Length: %d\r\n\r\n" % sum(map(len, body))
        attempt = 0
        try:
            while True:
                attempt += 1
                answer = await self._attempt(request, attempt, head, body)
                if answer.error_kind is None:
                    self._finished += 1
                    return
                if attempt >= self._attempts_allowed or self._stopping or not _worth_a_retry(answer):
                    self._failed += 1
                    return
                self._retried += 1
                await asyncio.sleep(
                    min(_FIRST_BACKOFF_SECONDS * 2 ** (attempt - 1), _LONGEST_BACKOFF_SECONDS)
                )
        except asyncio.CancelledError:
            self._failed += 1
            self._aborted += 1
            if not self._stopping:
                raise

    async def _attempt(
        self, request: OutgoingRequest, attempt: int, head: bytes, body: tuple[bytes, ...]
    ) -> Answer:
        """One attempt and its record; cancelled ones leave a record, too."""
        new_answer = partial(
            Answer,
            keep_text=request.on_answer is not None,
            most_output_tokens=request.most_output_tokens,
        )
        answer = new_answer()
        connection: Connection | None = None
        started_ns, wall_start = time.perf_counter_ns(), time.time()
        try:
            while True:
                connection = self._kept_connection() or await self._connect(answer)
                if connection is None:
                    break
                wall_start = time.time()
                await connection.exchange(head, body, answer, self._timeout_seconds)
                if not connection.stale:
                    break
                self._reopened += 1
                answer = new_answer()
        except BaseException:
            if answer.done_ns is None:
                answer.fail("aborted", "stopped while in flight")
                raise
            # The stop came between the last byte and this line: the answer is whole.
            if not self._stopping:
                raise
        finally:
            if connection is not None:
                if connection.exchanges:
                    started_ns = connection.sent_ns
                if connection.usable:
                    self._idle.append(connection)
            self._attempts += 1
            self._on_record(self._record(request, attempt, started_ns, wall_start, answer))
        if request.on_answer is not None and answer.error_kind is None:
            request.on_answer(answer.text)
        return answer

    def _kept_connection(self) -> Connection | None:
        """The connection used last (the least likely to be stale) that is still open."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self, answer: Answer) -> Connection | None:
        where = f"{self._endpoint.host}:{self._endpoint.port}"
        try:
            return await Connection.open(self._endpoint, self._timeout_seconds)
        except TimeoutError:
            limit = f" within {self._timeout_seconds:g} s" if self._timeout_seconds is not None else ""
            answer.fail("timeout", f"no connection to {where}{limit}")
        except OSError as error:
            reason = tls_problem(error, self._endpoint.trust) or error
            answer.fail("connect", f"cannot connect to {where}: {reason}")
        return None

    def _record(
        self, request: OutgoingRequest, attempt: int, started_ns: int, wall_start: float, answer: Answer
    ) -> RequestRecord:
        times = answer.token_ns
        return RequestRecord(
            position=request.position,
            request_id=request.request_id,
            group=request.group,
            dp_rank=request.dp_rank,
            lane_sequence=request.lane_sequence,
            attempt=attempt,
            started_ns=started_ns,
            wall_start=wall_start,
            ttft_s=(times[0] - started_ns) / 1e9 if times else None,
            e2el_s=(answer.done_ns - started_ns) / 1e9 if answer.done_ns is not None else None,
            itl_s=tuple([(b - a) / 1e9 for a, b in itertools.pairwise(times)]),
            chunks=len(times),
            http_status=answer.status,
            error_kind=answer.error_kind,
            error_text=self._presentable(answer.error_text),
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            cached_tokens=answer.cached_tokens,
            finish_reason=self._presentable(answer.finish_reason),
            image_tokens=answer.image_tokens,
        )

    def _presentable(self, text: str | None) -> str | None:
        """One short line without secrets: a server may echo the headers it was sent."""
        if text is None:
            return None
        return presentable(self._redact(text), _LONGEST_ERROR)


def _secrets(headers: Mapping[str, str]) -> list[str]:
    """What must not appear in a record."""
    found: set[str] = set()
    for name, value in headers.items():
        if name.lower() in _SECRET_HEADERS:
            found |= {value, value.partition(" ")[2]}
    return [secret for secret in found if secret]


def _worth_a_retry(answer: Answer) -> bool:
    """Whether another attempt may end otherwise; a refused request (4xx) is refused again."""
    if answer.error_kind == "http":
        return answer.status is not None and (answer.status >= 500 or answer.status in _WORTH_A_RETRY_STATUS)
    return answer.error_kind in _WORTH_A_RETRY


async def send_load(
    requests: Iterable[OutgoingRequest],
    *,
    url: str,
    concurrency: int,
    on_record: OnRecord,
    stop: asyncio.Event,
    headers: Mapping[str, str] | None = None,
    api_key: str | None = None,
    trust: Trust = SYSTEM,
    timeout_seconds: float | None = None,
    retries: int = 0,
    on_progress: Callable[[LoadProgress], None] | None = None,
    arrivals: Iterable[float] | None = None,
    start_within_seconds: float | None = None,
) -> LoadSummary:
    """Send the requests with at most `concurrency` in flight, starting in their order, one at a time per lane.

    `requests` is read lazily, in the loop's thread; so are body functions called. A request waiting for its lane
    holds no slot (see `LaneQueue`). After a failure the lane goes on; the record tells.

    Args:
        url: the completions address, http or https.
        on_record: called in the loop's thread with every attempt as it ends; what it raises ends the load.
        stop: once set nothing starts any more, and what is in flight is dropped and recorded as aborted.
        headers: sent with every request. `api_key` becomes a bearer Authorization header.
        trust: for an address with https.
        timeout_seconds: longest time for a connect, and without a new token (`Connection.exchange`); None: no limit.
        retries: further attempts after a failure that another attempt may mend (no connection, reset, timeout,
            broken stream, HTTP 408, 429 and 5xx), with a growing pause; each is recorded.
        on_progress: called twice a second and at the end.
        arrivals: seconds after the begin at which the requests arrive, ascending (`arrivals.py` makes them): an open
            loop. A request starts at its time, or as soon as its lane and a slot are free. None: a closed loop, in which
            a request starts when another ends.
        start_within_seconds: of an open loop: nothing starts later; what runs then may end.

    Raises:
        DriverError: unusable URL, header or number, or lanes out of order. Also whatever `requests`, a body
            function or `on_record` raise.
    """
    if concurrency < 1 or retries < 0 or (timeout_seconds is not None and timeout_seconds <= 0):
        limit = "not set" if timeout_seconds is None else f"{timeout_seconds:g}"
        raise DriverError(
            f"native driver: concurrency {concurrency}, retries {retries}, timeout_seconds {limit}; needs at least 1, at "
            "least 0 and more than 0"
        )
    load = _Load(
        requests,
        endpoint=Endpoint.of(url, trust),
        headers=headers or {},
        api_key=api_key,
        concurrency=concurrency,
        timeout_seconds=timeout_seconds,
        retries=retries,
        on_record=on_record,
        on_progress=on_progress,
        arrivals=arrivals,
        start_within_seconds=start_within_seconds,
    )
    return await load.run(stop)


def run_load(
    requests: Iterable[OutgoingRequest],
    *,
    url: str,
    concurrency: int,
    on_record: OnRecord,
    stop: threading.Event | None = None,
    headers: Mapping[str, str] | None = None,
    api_key: str | None = None,
    trust: Trust = SYSTEM,
    timeout_seconds: float | None = None,
    retries: int = 0,
    on_progress: Callable[[LoadProgress], None] | None = None,
    arrivals: Iterable[float] | None = None,
    start_within_seconds: float | None = None,
) -> LoadSummary:
    """`send_load` for synchronous callers, on uvloop, in the calling thread.

    `stop` may be set from another thread or a signal handler. Ctrl-C with Python's own handler also records what is in
    flight as aborted, and then raises KeyboardInterrupt.
    """

    async def main() -> LoadSummary:
        stopped = asyncio.Event()
        watcher = asyncio.create_task(_forward(stop, stopped)) if stop is not None else None
        try:
            return await send_load(
                requests,
                url=url,
                concurrency=concurrency,
                on_record=on_record,
                stop=stopped,
                headers=headers,
                api_key=api_key,
                trust=trust,
                timeout_seconds=timeout_seconds,
                retries=retries,
                on_progress=on_progress,
                arrivals=arrivals,
                start_within_seconds=start_within_seconds,
            )
        finally:
            if watcher is not None:
                watcher.cancel()

    # What exists now will outlive the load; without this every full collection would walk it and stop the clock.
    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())
    finally:
        gc.unfreeze()


async def _forward(source: threading.Event, target: asyncio.Event) -> None:
    while not source.is_set():  # noqa: ASYNC110 - another thread sets it
        await asyncio.sleep(_STOP_POLL_SECONDS)
    target.set()
