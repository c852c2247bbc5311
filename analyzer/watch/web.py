"""Reports, results and metrics over HTTP, read-only.

Of the artifacts only `report.html` and `analysis.json` of measurements can be had. Every part of the path is opened by
itself and without following links, so nothing outside the artifacts is ever read, whatever is put there. A page of
somebody else's that a browser has open cannot read them either: only known names are answered (`_is_ours`).
"""

import ipaddress
import logging
import os
import re
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote, urlsplit

from contract.errors import ServiceError
from contract.foreign_text import presentable

LOGGER = logging.getLogger("hitlab.watch")

PREFIX = "/reports/"
CONTENT_TYPES = {"report.html": "text/html; charset=utf-8", "analysis.json": "application/json"}
MOST_PARTS = 16
CHUNK = 1 << 16

MOST_CLIENTS = 64
"""Connections at a time, each with a thread."""
REQUEST_SECONDS = 30.0
"""For a whole request, from the moment the connection waits for it; then for each piece of the answer."""

# A report is drawn in advance: it needs its own styles and pictures, and no script. `sandbox` takes the rest away.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox allow-popups"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

Index = Callable[[], Sequence[tuple[str | None, str]]]
"""Path (None: there is no report) and title of each measurement."""
"""Path of a report -> what it is about, newest first."""


def report_path(artifacts: Path, report: Path) -> str:
    """The path part of a report's address."""
    return PREFIX + quote(str(report.relative_to(artifacts)))


def open_artifact(artifacts: Path, path: str) -> tuple[BinaryIO, int, str] | None:
    """The file behind the path of an address, its size and content type. None: there is none that may be read."""
    if not path.startswith(PREFIX):
        return None
    parts = unquote(path.removeprefix(PREFIX)).split("/")
    if len(parts) > MOST_PARTS or any(not _is_plain(part) for part in parts):
        return None
    if parts[-4:-2] != ["result", "runs"] or parts[-1] not in CONTENT_TYPES:
        return None
    descriptor = _open_beneath(artifacts, parts)
    if descriptor is None:
        return None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb"), status.st_size, CONTENT_TYPES[parts[-1]]


def _is_plain(part: str) -> bool:
    """A name; not empty, hidden, "." or "..", and without what a file system or a terminal takes for more."""
    return bool(part) and not part.startswith(".") and re.search(r"[\x00-\x1f\\]", part) is None


def _open_beneath(folder: Path, parts: Sequence[str]) -> int | None:
    """A descriptor, reached from `folder` through real folders only. The folder itself may be a link."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        # Not blocking: a pipe that somebody put there would hold the thread.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_NONBLOCK if last else os.O_DIRECTORY)
        try:
            entered = os.open(part, flags, dir_fd=descriptor)
        except (OSError, ValueError):
            return None
        finally:
            os.close(descriptor)
        descriptor = entered
    return descriptor


class _Server(ThreadingHTTPServer):
    """Bounded in threads, and in the time that each may be held."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        artifacts: Path,
        metrics: Callable[[], bytes],
        index: Index,
        names: Collection[str],
    ) -> None:
        self.artifacts = artifacts
        self.metrics = metrics
        self.index = index
        self.names = frozenset(map(str.lower, (*names, "localhost", socket.gethostname())))
        self._deadlines: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def go_on(self, connection: socket.socket) -> None:
        """Give the connection its time anew."""
        with self._lock:
            self._deadlines[connection] = time.monotonic() + REQUEST_SECONDS

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            room = len(self._deadlines) < MOST_CLIENTS
        if not room:
            with suppress(OSError):
                request.settimeout(0)
                request.send(_NO_ROOM)
            self.shutdown_request(request)
            return
        self.go_on(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Between two connections: end those whose time is over, however slowly something still trickles."""
        now = time.monotonic()
        with self._lock:
            over = [connection for connection, deadline in self._deadlines.items() if deadline < now]
            for connection in over:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's
        """A client that goes away is no news; anything else is a fault of ours."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            LOGGER.exception("answering %s", client_address)


_NO_ROOM = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)


def _is_ours(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this service: by an IP address, or by a name that is known to be ours.

    A name that a stranger owns may be made to lead to this machine (DNS rebinding); an address cannot.
    """
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    if not name or "@" in host:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.rstrip(".") in names or name.endswith(".localhost")
    return True


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version = "hitlab"
    sys_version = ""

    def handle_one_request(self) -> None:
        self.server.go_on(self.connection)
        super().handle_one_request()

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        self.server.go_on(self.connection)
        if self.command not in ("GET", "HEAD"):
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD only", {"Allow": "GET, HEAD"})
        elif self.headers.get("Transfer-Encoding") or self.headers.get("Content-Length", "0").strip() != "0":
            # What follows would be taken for the next request.
            self._refuse(HTTPStatus.BAD_REQUEST, "a request has no body here")
        elif not self._is_for_us():
            self._refuse(
                HTTPStatus.MISDIRECTED_REQUEST,
                "no such host here; whoever runs hitlab watch allows a name with --allow-host or --public-url",
            )
        elif self._path() is None:
            self._refuse(HTTPStatus.BAD_REQUEST, "no path")
        else:
            return True
        return False

    def _is_for_us(self) -> bool:
        """Whether the request names this service. A browser says which name it has looked up; HTTP/1.0 says nothing."""
        hosts = self.headers.get_all("Host") or []
        if not hosts:
            return self.request_version == "HTTP/1.0"
        return len(hosts) == 1 and _is_ours(hosts[0], self.server.names)

    def _path(self) -> str | None:
        try:
            return urlsplit(self.path).path
        except ValueError:
            return None

    def _refuse(self, status: HTTPStatus, reason: str, more: dict[str, str] | None = None) -> None:
        self.close_connection = True
        self._send(status, "text/plain", f"{reason}\n".encode(), {"Connection": "close", **(more or {})})

    def do_GET(self) -> None:
        path = self._path() or ""
        if path == "/":
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", _index_page(self.server.index()))
        elif path == "/healthz":
            self._send(HTTPStatus.OK, "text/plain", b"ok\n")
        elif path == "/metrics":
            self._send(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", self.server.metrics())
        else:
            self._send_artifact(path)

    do_HEAD = do_GET  # noqa: N815 - the name that the base class calls

    def _send_artifact(self, path: str) -> None:
        found = open_artifact(self.server.artifacts, path)
        if found is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"no such report\n")
            return
        file, size, content_type = found
        with file:
            self._head(HTTPStatus.OK, content_type, size)
            if self.command == "HEAD":
                return
            left = size
            while left and (piece := file.read(min(CHUNK, left))):
                self.wfile.write(piece)
                self.server.go_on(self.connection)
                left -= len(piece)
            # Shorter than promised: the connection is of no more use.
            self.close_connection = self.close_connection or left > 0

    def _send(
        self, status: HTTPStatus, content_type: str, content: bytes, more: dict[str, str] | None = None
    ) -> None:
        self._head(status, content_type, len(content), more)
        if self.command != "HEAD":
            self.wfile.write(content)

    def _head(
        self, status: HTTPStatus, content_type: str, size: int, more: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Scrapes would fill the log."""


def _index_page(reports: Sequence[tuple[str | None, str]]) -> bytes:
    titles = ((path, escape(presentable(text))) for path, text in reports)
    rows = "".join(
        f"<li>{title}</li>" if path is None else f'<li><a href="{escape(path)}">{title}</a></li>'
        for path, title in titles
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>HitLab reports</title>"
        "<style>:root{color-scheme:light dark}body{font:16px/1.6 system-ui,sans-serif;margin:2rem auto;"
        "max-width:60rem;padding:0 1rem}</style><h1>HitLab reports</h1>"
        + (f"<ol reversed>{rows}</ol>" if rows else "<p>No measurement has been analysed yet.</p>")
    ).encode()


@contextmanager
def serving(
    host: str,
    port: int,
    artifacts: Path,
    metrics: Callable[[], bytes],
    index: Index,
    names: Collection[str] = (),
) -> Iterator[int]:
    """Serve in a thread during the block; yields the port (0 asks for a free one).

    Beside IP addresses, localhost and this machine's own name, requests may be for `names` and `host`.

    Raises ServiceError when the address cannot be had.
    """
    try:
        server = _Server((host, port), artifacts, metrics, index, {host, *names})
    except OSError as error:
        raise ServiceError(
            f"{host}:{port}: cannot listen there ({error.strerror}); name another port with --port"
        ) from error
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="web", daemon=True
    )
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
