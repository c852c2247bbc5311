"""A small balancer before several engines: each request, those for /metrics too, goes to one of them by its policy."""

import http.client
import itertools
import random
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Choose = Callable[[str, Mapping[str, str], int], int]
"""Path, headers and number of engines -> which engine."""


def round_robin() -> Choose:
    turns = itertools.count()
    return lambda _path, _headers, engines: next(turns) % engines


def at_random(seed: int) -> Choose:
    generator = random.Random(seed)
    return lambda _path, _headers, engines: generator.randrange(engines)


def sticky() -> Choose:
    """By session, as consistent hashing does; without one, everything but the metrics page goes to the first engine."""

    def choose(path: str, headers: Mapping[str, str], engines: int) -> int:
        session = headers.get("X-Session-ID")
        if session is not None:
            return zlib.crc32(session.encode()) % engines
        return engines - 1 if path == "/metrics" else 0

    return choose


def apart() -> Choose:
    """The page is always that of the last engine; the requests are spread over the others. No header changes it."""
    turns = itertools.count()
    return lambda path, _headers, engines: engines - 1 if path == "/metrics" else next(turns) % (engines - 1)


POLICIES: dict[str, Callable[[], Choose]] = {
    "round robin": round_robin,
    "random": lambda: at_random(7),
    "sticky": sticky,
    "apart": apart,
}


@dataclass
class Balancer:
    """`metrics_status`: answered for /metrics instead of a page; `readiness`: the body of /readiness, None: 404."""

    engines: Sequence[str]
    choose: Choose
    metrics_status: int | None = None
    readiness: bytes | None = None
    url: str = ""
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def engine_for(self, path: str, headers: Mapping[str, str]) -> str:
        with self._one_at_a_time:
            return self.engines[self.choose(path, headers, len(self.engines))]


@contextmanager
def balancer(engines: Sequence[str], choose: Choose) -> Iterator[Balancer]:
    """Listens on a port of its own until the block ends."""
    balanced = Balancer(engines, choose)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on(b"")

        def do_POST(self) -> None:
            self._pass_on(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def _pass_on(self, body: bytes) -> None:
            if self.path == "/metrics" and balanced.metrics_status is not None:
                return self._answer(balanced.metrics_status, b"")
            if self.path == "/readiness":
                status = 404 if balanced.readiness is None else 200
                return self._answer(status, balanced.readiness or b"")
            target = urlsplit(balanced.engine_for(self.path, dict(self.headers.items())))
            upstream = http.client.HTTPConnection(str(target.hostname), target.port, timeout=20)
            try:
                headers = {
                    name: value
                    for name, value in self.headers.items()
                    if name.lower() not in ("host", "connection")
                }
                upstream.request(self.command, self.path, body, headers)
                answer = upstream.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                self.end_headers()  # HTTP/1.0: the end of the connection is the end of the answer
                while piece := answer.read1():
                    self.wfile.write(piece)
                    self.wfile.flush()
            finally:
                upstream.close()
            return None

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Tests print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    balanced.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield balanced
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
