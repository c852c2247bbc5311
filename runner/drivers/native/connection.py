"""HTTP/1.1 over one connection: an asyncio protocol around httptools, one request in flight.

The client is part of the measurement: general-purpose HTTP clients add milliseconds per request to every latency they
report. Here nothing stands between the socket and the clock.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, cast
from urllib.parse import urlsplit

import httptools

from contract.errors import DriverError
from contract.records import ErrorKind
from contract.trust import SYSTEM, Trust, tls_problem
from runner.drivers.native.answer import Answer

STALE_WITHIN_NS: Final = 1_000_000_000
REST_OF_ANSWER_SECONDS: Final = 1.0
"""How long a connection may still carry what follows the end mark of a stream, to be used again."""
LARGEST_HEAD: Final = 1 << 16
"""Bytes before the body of an answer: its status line and headers, and whatever interim answers precede them."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go: the parts of a URL that a connection needs."""

    host: str
    port: int
    target: str
    host_header: str
    tls: ssl.SSLContext | None
    trust: Trust = SYSTEM

    @classmethod
    def of(cls, url: str, trust: Trust = SYSTEM) -> "Endpoint":
        """Take a URL apart.

        Raises:
            DriverError: not an http(s) URL with a host, or one that holds a user or password. ScenarioError: a file of
                `trust` cannot be used.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise DriverError(
                f"inference URL is malformed ({error}); expected http://host:port/v1/..."
            ) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise DriverError("inference URL must be http://host:port/path or https://host:port/path")
        if parts.username is not None or parts.password is not None:
            raise DriverError("inference URL holds a user or password; give the key by api_key instead")
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not all("!" <= character <= "~" for character in url):
            raise DriverError("inference URL has a character that must be percent-encoded")
        secure = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=port or (443 if secure else 80),
            target=target,
            host_header=parts.netloc,
            tls=trust.context() if secure else None,
            trust=trust,
        )

    def head(self, headers: Mapping[str, str]) -> bytes:
        """Request line and headers up to, and without, Content-Length and the closing blank line.

        Raises:
            DriverError: a header holds a control character or one outside Latin-1 (its name is told, not its value).
        """
        own = {
            "Host": self.host_header,
            "User-Agent": "hitlab",
            "Accept": "*/*",
            "Content-Type": "application/json",
        }
        taken = {name.lower() for name in headers} | {"content-length", "connection", "transfer-encoding"}
        lines = [f"POST {self.target} HTTP/1.1"]
        for name, value in (*((n, v) for n, v in own.items() if n.lower() not in taken), *headers.items()):
            if name.lower() in ("content-length", "connection", "transfer-encoding"):
                raise DriverError(f"header {name} is the driver's own; remove it")
            if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
                raise DriverError(f"header name {name!r} is not valid")
            if any(c < " " or c == "\x7f" or c > "\xff" for c in value):
                raise DriverError(f"header {name} has a character that HTTP does not allow")
            lines.append(f"{name}: {value}")
        return ("\r\n".join(lines) + "\r\n").encode("latin-1")


def no_progress(seconds: float, answer: Answer, *, came_on: bool) -> str:
    """Why an answer is given up; `came_on`: other bytes came, behind complete headers or instead of them."""
    since = "the last token" if answer.token_ns else "the request"
    if not came_on:
        return f"nothing came for {seconds:g} s after {since}"
    what = "token" if answer.streams or answer.status is None else "complete answer"
    return f"no {what} came for {seconds:g} s after {since}, though other bytes did"


class Connection(asyncio.Protocol):
    """One keep-alive connection. `exchange` sends a request and waits until its answer is complete or has failed."""

    def __init__(self, trust: Trust = SYSTEM) -> None:
        self._loop = asyncio.get_running_loop()
        self._trust = trust
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._finished: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timeout_ns = 0
        self._now_ns = 0
        self._received_ns = self._body_ns = 0
        self._head_bytes = 0
        self._resting = False
        self._content_type = self._content_encoding = b""
        self._has_length = self._in_body = False
        self.exchanges = 0
        """Requests sent so far."""
        self.sent_ns = 0
        """`perf_counter_ns` just before the first byte of the last request."""
        self.stale = False
        """The last exchange met a connection that the server had already given up, see `exchange`."""

    @classmethod
    async def open(cls, endpoint: Endpoint, timeout_seconds: float | None) -> "Connection":
        """Connect, TLS included.

        Raises:
            OSError, ssl.SSLError: no connection. TimeoutError: none within the time.
        """
        async with asyncio.timeout(timeout_seconds):
            _, connection = await asyncio.get_running_loop().create_connection(
                partial(cls, endpoint.trust),
                endpoint.host,
                endpoint.port,
                ssl=endpoint.tls,
                server_hostname=endpoint.host if endpoint.tls else None,
            )
        return connection

    @property
    def usable(self) -> bool:
        """Open and without a request in flight."""
        return self._transport is not None and not self._transport.is_closing() and self._finished is None

    async def exchange(
        self, head: bytes, body: tuple[bytes, ...], answer: Answer, timeout_seconds: float | None
    ) -> None:
        """Send one request, `body` in its pieces, and feed `answer`; failures are noted there, none is raised.

        `timeout_seconds` is the longest time without a new token, since the request or the token before; of an answer
        that does not stream, without all of it. Comments, pings, role chunks and interim answers are none of it.

        A server may close an idle connection at the moment a request is written to it. Then the request was never
        read: `stale` is set and the caller may send it again on a fresh connection. This is assumed only when the
        connection had served a request before, not one byte of an answer came, and the close arrived
        within a second; a server that dies later may have worked on the request, and that is a failure.
        """
        transport = self._transport
        if self._finished is not None:
            raise RuntimeError("a request is in flight on this connection")
        if transport is None or transport.is_closing():
            answer.fail("reset", "the server closed the connection as soon as it was made")
            return
        self._answer, self.stale, self._resting = answer, False, False
        self._head_bytes = self._received_ns = self._body_ns = 0
        self._content_type = self._content_encoding = b""
        self._has_length = self._in_body = False
        self._finished = finished = self._loop.create_future()
        self.exchanges += 1
        self.sent_ns = time.perf_counter_ns()
        transport.writelines((head, *body))
        if timeout_seconds is not None:
            self._timeout_ns = int(timeout_seconds * 1e9)
            self._timer = self._loop.call_later(timeout_seconds, self._check_progress)
        try:
            await finished
        finally:
            if not finished.done() or finished.cancelled():
                self.close()
            self._settle()

    def close(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream transport; uvloop's does not derive from asyncio's class.
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._now_ns = self._received_ns = time.perf_counter_ns()
        if self._answer is None:
            # Bytes nobody asked for: whatever follows cannot be told apart from an answer.
            self.close()
            return
        if not self._in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            # A fault of ours inside a callback, not the server's.
            self.close()
            if self._finished is not None and not self._finished.done():
                self._finished.set_exception(error.__context__ or error)
        except httptools.HttpParserError as error:
            self._fail("http", f"the answer is not HTTP/1.1: {error}")
        else:
            self._look_for_an_end()

    def _look_for_an_end(self) -> None:
        """Of an answer that may have failed, or be complete, before its message is."""
        answer = self._answer
        if answer is None:
            return
        if answer.cut:
            self.close()
            self._resolve()
        elif answer.done and not self._resting:
            self._resting = True
            self._set_timer(REST_OF_ANSWER_SECONDS, self._give_up_rest)
        elif not self._in_body and self._head_bytes > LARGEST_HEAD:
            self._fail("http", f"more than {LARGEST_HEAD >> 10} KiB came, and no answer had begun")

    def eof_received(self) -> bool:
        self._now_ns = time.perf_counter_ns()
        if self._answer is not None and self._in_body and not self._has_length:
            # A body without length or chunks ends with the connection.
            self._answer.end(self._now_ns)
            self._resolve()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is None:
            return
        if self._answer.done:
            # [DONE] was there; only the end of the chunked body is missing.
            self._resolve()
            return
        lost_ns = time.perf_counter_ns()
        self.stale = (
            self.exchanges > 1 and not self._received_ns and lost_ns - self.sent_ns <= STALE_WITHIN_NS
        )
        when = "inside the answer" if self._received_ns else "before the answer"
        how = "end of file" if exc is None else tls_problem(exc, self._trust) or type(exc).__name__
        self._answer.fail("reset", f"the server closed the connection {when} ({how})")
        self._resolve()

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self._content_type = value
        elif name in (b"content-length", b"transfer-encoding"):
            self._has_length = True
        elif name == b"content-encoding":
            self._content_encoding = value.strip().lower()

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._answer is not None:
            self._in_body = True
            self._answer.begin(status, self._content_type, self._content_encoding)

    def on_body(self, data: bytes) -> None:
        self._body_ns = self._now_ns
        if self._answer is not None:
            self._answer.body(data, self._now_ns)

    def on_message_complete(self) -> None:
        if not self._in_body:
            # An interim answer (1xx); the real one follows.
            self._content_type = self._content_encoding = b""
            self._has_length = False
            return
        if self._answer is None:
            return
        self._answer.end(self._now_ns)
        if not self._parser.should_keep_alive():
            self.close()
        self._resolve()

    # Ends of an exchange

    def _set_timer(self, seconds: float, action: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, action)

    def _check_progress(self) -> None:
        answer = self._answer
        if answer is None:
            return
        since_ns = answer.token_ns[-1] if answer.token_ns else self.sent_ns
        left_ns = since_ns + self._timeout_ns - time.perf_counter_ns()
        if left_ns > 0:
            self._set_timer(left_ns / 1e9, self._check_progress)
        else:
            came_on = (self._body_ns if self._in_body else self._received_ns) > since_ns
            self._fail("timeout", no_progress(self._timeout_ns / 1e9, answer, came_on=came_on))

    def _give_up_rest(self) -> None:
        self.close()
        self._resolve()

    def _fail(self, kind: ErrorKind, text: str) -> None:
        if self._answer is not None:
            self._answer.fail(kind, text)
        self.close()
        self._resolve()

    def _resolve(self) -> None:
        self._answer = None
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    def _settle(self) -> None:
        self._finished = self._answer = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
