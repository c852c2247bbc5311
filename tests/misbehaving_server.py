"""A simulated engine that misbehaves where it is told to, and is an honest simulator everywhere else.

What it counts and caches stays true: a fault sits between the simulator and the client. `formal[n]` is the fault of the
n-th request that streams (probes and warmups do not), `instead[path]` that of every request to a route.
"""

import asyncio
import itertools
import re
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson
import uvloop

from prompts.tokenizer import Tokenizer
from simulator.app import App
from simulator.config import SimulatorConfig
from simulator.http import ClientGoneError, Connection, Request, Response

COMPLETIONS = "/v1/completions"
METRICS = "/metrics"
RESET = "/reset_prefix_cache"
EVENT_END = b"\n\n"
SECONDS_TO_WAIT = 120.0


@dataclass
class MisbehavingServer:
    """Give orders before the run; they are followed in the server's own thread."""

    config: SimulatorConfig
    tokenizer: Tokenizer
    tls: ssl.SSLContext | None = None
    formal: dict[int, "Fault"] = field(default_factory=dict)
    instead: dict[str, "Fault"] = field(default_factory=dict)
    formal_requests: int = 0
    warmup_requests: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    url: str = ""

    def __post_init__(self) -> None:
        self.app = App(self.config, self.tokenizer)
        self.connections: set[Connection] = set()
        self.reached = threading.Condition()
        self._engine: asyncio.Task[None] | None = None
        self._listener: asyncio.Server | None = None

    async def __call__(self, request: Request, response: Response) -> None:
        fault = self.instead.get(request.path)
        # Warmups say that they do not stream; probes leave it open.
        streams = orjson.loads(request.body).get("stream") if request.path == COMPLETIONS else None
        with self.reached:
            self.seen[request.path] += 1
            self.formal_requests += streams is True
            self.warmup_requests += streams is False
            self.reached.notify_all()
        if streams is True:
            fault = self.formal.get(self.formal_requests, fault)
        await (fault or honest)(self, request, response)

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Block until requests have made `reached` true."""
        with self.reached:
            assert self.reached.wait_for(reached, SECONDS_TO_WAIT)

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: Connection(self, self.connections), "127.0.0.1", 0, ssl=self.tls
        )
        self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        self._engine = loop.create_task(self.app.engine.run())

    def die(self) -> None:
        """Close the listener and drop every connection, as the kernel does for a killed process."""
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            drop(connection)

    def restart(self) -> None:
        """A fresh engine behind the same address: empty cache, counters at zero."""
        if self._engine is not None:
            self._engine.cancel()
        self.app = App(self.config, self.tokenizer)
        self._engine = asyncio.get_running_loop().create_task(self.app.engine.run())

    async def close(self) -> None:
        self.die()
        if self._engine is not None:
            self._engine.cancel()
            await asyncio.gather(self._engine, return_exceptions=True)


Fault = Callable[[MisbehavingServer, Request, Response], Awaitable[None]]


@contextmanager
def misbehaving_server(
    config: SimulatorConfig, tokenizer: Tokenizer, tls: ssl.SSLContext | None = None
) -> Iterator[MisbehavingServer]:
    """A server in a thread of its own, stopped at the end of the block."""
    server = MisbehavingServer(config, tokenizer, tls)
    started, stop = threading.Event(), asyncio.Event()
    loop = uvloop.new_event_loop()

    async def serve() -> None:
        await server.listen()
        started.set()
        await stop.wait()
        await server.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(SECONDS_TO_WAIT)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(SECONDS_TO_WAIT)
        loop.close()


def drop(connection: Connection) -> None:
    """Reset the connection."""
    if connection._transport is not None:
        connection._transport.abort()


class _Events(Response):
    """A stream whose events pass through `edit`, which gets the number of each (from 0) and may send, hold or drop."""

    def __init__(self, response: Response, edit: "Edit") -> None:
        super().__init__(response._connection, response._request)
        self._edit, self._count = edit, 0

    async def write(self, data: bytes) -> None:
        for event in data.split(EVENT_END)[:-1]:
            edited = await self._edit(self._count, event + EVENT_END, self)
            self._count += 1
            if edited:
                await super().write(edited)


Edit = Callable[[int, bytes, Response], Awaitable[bytes]]


# Faults


async def honest(server: MisbehavingServer, request: Request, response: Response) -> None:
    await server.app(request, response)


def events(edit: Edit) -> Fault:
    async def fault(server: MisbehavingServer, request: Request, response: Response) -> None:
        await server.app(request, _Events(response, edit))

    return fault


def answers(status: int, body: bytes, content_type: str = "application/json", **headers: str) -> Fault:
    async def fault(server: MisbehavingServer, request: Request, response: Response) -> None:
        fields = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        response.send(status, body, content_type, fields)

    return fault


def resets(after_events: int) -> Fault:
    """The connection is reset inside the stream."""

    async def edit(number: int, event: bytes, response: Response) -> bytes:
        if number < after_events:
            return event
        await asyncio.sleep(0.02)  # what was written is on its way
        drop(response._connection)
        raise ClientGoneError

    return events(edit)


def stalls(after_events: int) -> Fault:
    """The stream goes silent until the client gives up."""

    async def edit(number: int, event: bytes, response: Response) -> bytes:
        if number >= after_events:
            await asyncio.Event().wait()
        return event

    return events(edit)


def ends_early(after_events: int) -> Fault:
    """The stream ends in good form, but before its last events."""

    async def edit(number: int, event: bytes, response: Response) -> bytes:
        return event if number < after_events else b""

    return events(edit)


def replaces_event(which: int, text: bytes) -> Fault:
    async def edit(number: int, event: bytes, response: Response) -> bytes:
        return text if number == which else event

    return events(edit)


def tells(field: str, value: int) -> Fault:
    """`usage` of a stream says something else."""

    async def edit(number: int, event: bytes, response: Response) -> bytes:
        return re.sub(rb'"%b":\d+' % field.encode(), b'"%b":%d' % (field.encode(), value), event)

    return events(edit)


def leaves_out_usage() -> Fault:
    async def edit(number: int, event: bytes, response: Response) -> bytes:
        return b"" if b'"usage":{' in event else event

    return events(edit)


async def hangs(server: MisbehavingServer, request: Request, response: Response) -> None:
    await asyncio.Event().wait()


async def dies(server: MisbehavingServer, request: Request, response: Response) -> None:
    server.die()


async def restarts(server: MisbehavingServer, request: Request, response: Response) -> None:
    server.restart()
    await server.app(request, response)


def from_here(path: str, fault: Fault) -> Fault:
    """Answer honestly, and from now on use `fault` for a route."""

    async def switch(server: MisbehavingServer, request: Request, response: Response) -> None:
        server.instead[path] = fault
        await server.app(request, response)

    return switch


def times(count: int, fault: Fault) -> Fault:
    """The fault `count` times, then honest answers."""
    left = count

    async def limited(server: MisbehavingServer, request: Request, response: Response) -> None:
        nonlocal left
        left -= 1
        await (fault if left >= 0 else honest)(server, request, response)

    return limited


def warmups(fault: Fault) -> Fault:
    """The fault for warmups alone, not for probes."""

    async def chosen(server: MisbehavingServer, request: Request, response: Response) -> None:
        is_warmup = orjson.loads(request.body).get("stream") is False
        await (fault if is_warmup else honest)(server, request, response)

    return chosen


# Metrics


def metrics(edit: Callable[[str], str]) -> Fault:
    """The simulator's own metrics, edited."""

    async def fault(server: MisbehavingServer, request: Request, response: Response) -> None:
        text = edit(server.app.engine.metrics.text().decode())
        response.send(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    return fault


def counter(name: str, change: Callable[[float], float]) -> Callable[[str], str]:
    """A counter of every rank shows something else than it counted."""
    pattern = re.compile(rf"^({re.escape(name)}(?:_total)?{{.*}}) (\S+)$", re.MULTILINE)
    return lambda text: pattern.sub(lambda found: f"{found[1]} {change(float(found[2]))}", text)


def never_settling(name: str) -> Callable[[str], str]:
    """Every scrape shows one more than the one before."""
    scrapes = itertools.count(1)

    def edit(text: str) -> str:
        more = next(scrapes)
        return counter(name, lambda value: value + more)(text)

    return edit


def without_rank(rank: int) -> Callable[[str], str]:
    def edit(text: str) -> str:
        return "".join(line for line in text.splitlines(keepends=True) if f'engine="{rank}"' not in line)

    return edit
