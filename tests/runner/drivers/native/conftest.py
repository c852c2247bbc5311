"""A scripted HTTP server: answers well unless told otherwise for the n-th request."""

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def choice(text: str = "a", finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


def usage(prompt: int = 10, completion: int = 3, cached: int | None = 4) -> dict[str, Any]:
    details = None if cached is None else {"cached_tokens": cached}
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion,
                                     "prompt_tokens_details": details}}  # fmt: skip


STREAM = b"".join(
    (event(choice()), event(choice()), event(choice("b", "length")), event(usage()), event(b"[DONE]"))
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def head(
    status: str = "200 OK", kind: str = "text/event-stream", length: int | None = None, extra: str = ""
) -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{size}\r\n{extra}\r\n".encode()


def plain(status: str, body: bytes, kind: str = "application/json", extra: str = "") -> bytes:
    return head(status, kind, len(body), extra) + body


GOOD = head() + chunk(STREAM) + chunk(b"")


@dataclass
class Received:
    number: int
    headers: dict[str, str]
    body: Any
    connection: int


Behaviour = Callable[[Received, asyncio.StreamWriter], Awaitable[bool | None]]


@dataclass
class ScriptedServer:
    """`script(number)` gives the bytes of an answer, or a coroutine function that writes it itself.

    A coroutine function that returns False ends the connection.
    """

    script: Callable[[int], bytes | Behaviour] = lambda _: GOOD
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    in_lane: Counter[Any] = field(default_factory=Counter)
    max_in_lane: int = 0
    url: str = ""
    port: int = 0

    async def __aenter__(self) -> "ScriptedServer":
        return await self.start()

    async def start(self, tls: ssl.SSLContext | None = None) -> "ScriptedServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}/v1/completions"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = self.connections
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                assert lines[0] == "POST /v1/completions HTTP/1.1"
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:] if line)}
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                got = Received(len(self.received) + 1, headers, body, connection)
                self.received.append(got)
                if not await self._answer(got, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _answer(self, got: Received, writer: asyncio.StreamWriter) -> bool:
        lane = got.body.get("lane") if isinstance(got.body, dict) else None
        self.in_flight += 1
        self.in_lane[str(lane)] += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        if lane is not None:
            self.max_in_lane = max(self.max_in_lane, self.in_lane[str(lane)])
        try:
            behaviour = self.script(got.number)
            if not callable(behaviour):
                # Counted as over before the client can know.
                self._leave(lane)
                writer.write(behaviour)
                await writer.drain()
                return True
            keep = await behaviour(got, writer)
            self._leave(lane)
            return keep is not False
        except BaseException:
            self._leave(lane)
            raise

    def _leave(self, lane: Any) -> None:
        self.in_flight -= 1
        self.in_lane[str(lane)] -= 1


def after(seconds: float, answer: bytes = GOOD) -> Behaviour:
    """An answer that takes its time."""

    async def behave(got: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        writer.write(answer)

    return behave


def hang_up(first: bytes = b"", abort: bool = False) -> Behaviour:
    """Write something, then close (`abort`: reset) the connection."""

    async def behave(got: Received, writer: asyncio.StreamWriter) -> bool:
        if first:
            writer.write(first)
            await writer.drain()
            await asyncio.sleep(0.02)
        if abort:
            writer.transport.abort()
        return False

    return behave


def stall(first: bytes = b"") -> Behaviour:
    async def behave(got: Received, writer: asyncio.StreamWriter) -> bool:
        writer.write(first)
        await asyncio.sleep(30)
        return False

    return behave


@pytest.fixture(scope="session")
def server_kit() -> Any:
    """The names of this module, for tests (test folders are not importable)."""
    import types

    return types.SimpleNamespace(**globals())


@pytest.fixture
def run() -> Callable[[Any], Any]:
    """Run a coroutine on uvloop, cancelling what the scripted server still does."""

    def runner(main: Any) -> Any:
        return uvloop.run(main)

    return runner
