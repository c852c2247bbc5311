"""HTTP/1.1 on an asyncio protocol: requests in, plain or chunked responses out, in the manner of uvicorn."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from time import time
from typing import cast
from urllib.parse import parse_qs, urlsplit

import httptools

logger = logging.getLogger(__name__)

LARGEST_HEAD = 64 * 2**10
"""Bytes of a request line and its headers."""
LARGEST_BODY = 64 * 2**20
MOST_PIPELINED = 100
"""Requests of one connection that wait for their turn."""
LINGER_SECONDS = 2.0
"""How long a refused client may go on sending, so that it reads why."""

_REASONS = {int(status): status.phrase for status in HTTPStatus}


class ClientGoneError(Exception):
    """The client closed the connection while its response was being written."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Header names are lower case; `target` is the path with its query."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    keep_alive: bool
    http_1_0: bool

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        """Last value of each query parameter."""
        return {name: values[-1] for name, values in parse_qs(urlsplit(self.target).query).items()}


@dataclass(slots=True)
class _Incoming:
    target: bytearray = field(default_factory=bytearray)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    head_bytes: int = 0
    in_head: bool = True


class Response:
    """Where a handler writes: `send` for a whole body, or `start_stream`, `write` and `finish`."""

    def __init__(self, connection: "Connection", request: Request) -> None:
        self._connection = connection
        self._request = request
        self._chunked = False
        self.started = False

    def send(
        self,
        status: int,
        body: bytes = b"",
        content_type: str | None = "application/json",
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Write a whole response; a HEAD request gets the header only."""
        fields = [("content-length", str(len(body))), *headers]
        if content_type is not None:
            fields.append(("content-type", content_type))
        head = self._head(status, fields)
        self._connection.write(head if self._request.method == "HEAD" else head + body)

    def start_stream(self, content_type: str) -> None:
        """Begin a response of unknown length; HTTP/1.0 has no chunks and gets it until the connection closes."""
        self._chunked = not self._request.http_1_0
        fields = [("content-type", content_type)]
        if self._chunked:
            fields.append(("transfer-encoding", "chunked"))
        self._connection.write(self._head(200, fields))

    async def write(self, data: bytes) -> None:
        """Write a piece of a stream and wait while the client reads too slowly.

        Raises:
            ClientGoneError: the connection is closed.
        """
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._connection.write(data)
        await self._connection.drain()

    def finish(self) -> None:
        if self._chunked:
            self._connection.write(b"0\r\n\r\n")

    def _head(self, status: int, fields: list[tuple[str, str]]) -> bytes:
        self.started = True
        lines = [f"HTTP/1.1 {status} {_REASONS[status]}", f"date: {_date()}", "server: uvicorn"]
        lines += [f"{name}: {value}" for name, value in fields]
        lines.append("vary: Origin")
        if not self._request.keep_alive:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


Handler = Callable[[Request, Response], Awaitable[None]]


class Connection(asyncio.Protocol):
    """One client connection: requests are answered in order, one at a time.

    A client that goes away cancels the handler that works for it. One that sends too much is refused, and what it goes on
    sending is not read into memory.
    """

    def __init__(self, handler: Handler, connections: set["Connection"]) -> None:
        self._handler = handler
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._incoming = _Incoming()
        self._queue: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None
        self._refusal: bytes | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's, so there is nothing to test here.
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._connections.discard(self)
        self._queue.clear()
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        incoming = self._incoming
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(400, b"Invalid HTTP request received.")
        if self._incoming is incoming and incoming.in_head:
            # The parser tells a header when it is complete.
            incoming.head_bytes += len(data)
            if incoming.head_bytes > LARGEST_HEAD:
                self._refuse(431, b"The request's headers are too large.")
        if self._refusal is not None and self._task is None:
            self._end_refused()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._incoming = _Incoming()

    def on_url(self, url: bytes) -> None:
        self._incoming.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._incoming.head_bytes += len(name) + len(value)
        self._incoming.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._incoming.in_head = False
        if self._incoming.head_bytes + len(self._incoming.target) > LARGEST_HEAD:
            self._refuse(431, b"The request's headers are too large.")
            return
        length = self._incoming.headers.get("content-length", "")
        # The parser has checked that it is a number.
        if len(length) > 18 or (length and int(length) > LARGEST_BODY):
            self._refuse(413, b"The request's body is too large.")
            return
        if self._incoming.headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        if self._refusal is not None:
            return
        self._incoming.body += body
        if len(self._incoming.body) > LARGEST_BODY:
            self._incoming.body.clear()
            self._refuse(413, b"The request's body is too large.")

    def on_message_complete(self) -> None:
        if self._refusal is not None:
            return
        if len(self._queue) >= MOST_PIPELINED:
            # Nothing is said: the answers before it are not read either.
            self._queue.clear()
            self._refusal = b""
            return
        self._queue.append(
            Request(
                self._parser.get_method().decode("ascii"),
                self._incoming.target.decode("latin-1"),
                self._incoming.headers,
                bytes(self._incoming.body),
                self._parser.should_keep_alive(),
                self._parser.get_http_version() == "1.0",
            )
        )
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._answer_queue())

    # responses

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def drain(self) -> None:
        if not self._writable.is_set():
            await self._writable.wait()
        if self._transport is None:
            raise ClientGoneError

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _refuse(self, status: int, text: bytes) -> None:
        """The last answer of this connection, behind those that are still to come."""
        if self._refusal is None:
            head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: text/plain; charset=utf-8\r\n"
            self._refusal = head.encode() + b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (
                len(text),
                text,
            )

    def _end_refused(self) -> None:
        transport = self._transport
        if transport is None:
            return
        if not self._refusal:
            transport.abort()
            return
        transport.write(self._refusal)
        transport.write_eof()
        # What is still on its way is thrown away: a reset would take the answer with it.
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self.close)

    async def _answer_queue(self) -> None:
        try:
            while self._queue:
                request = self._queue.popleft()
                if not await self._answer(request):
                    self.close()
                    return
                if self._queue:
                    await asyncio.sleep(0)  # the others' turn
        finally:
            self._task = None
        if self._refusal is not None:
            self._end_refused()

    async def _answer(self, request: Request) -> bool:
        """Answer one request; True when the connection may stay."""
        response = Response(self, request)
        try:
            await self._handler(request, response)
        except ClientGoneError:
            return False
        except Exception:  # the last resort of a server: log, answer 500, go on
            logger.exception("%s %s failed", request.method, request.target)
            if not response.started:
                response.send(500, b"Internal Server Error", "text/plain; charset=utf-8")
            return False
        if not self._writable.is_set():
            await self._writable.wait()  # a client that does not read gets no further answers
        return request.keep_alive and self._transport is not None


_last_date = (0, "")


def _date() -> str:
    global _last_date  # formatted once a second, not once a response
    now = int(time())
    if _last_date[0] != now:
        _last_date = (now, formatdate(now, usegmt=True))
    return _last_date[1]
