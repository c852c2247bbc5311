"""A small Grafana that is strict about its HTTP API, and can be made to fail in every way.

It follows the documented annotation and service account APIs
(https://grafana.com/docs/grafana/latest/developers/http_api/annotations/ and .../serviceaccount/) and refuses every
body that they do not describe, so a caller that is wrong fails here as it would there.
"""

import base64
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

ADMIN = ("admin", "a-first-password")

ANNOTATION_FIELDS: dict[str, type] = {
    "dashboardUID": str,
    "panelId": int,
    "time": int,
    "timeEnd": int,
    "tags": list,
    "text": str,
}
FIND_PARAMETERS = {
    *("from", "to", "limit", "alertId", "dashboardId", "dashboardUID", "panelId", "userId", "type", "tags"),
}


@dataclass
class Failure:
    """What happens to the next requests that match.

    Attributes:
        method, path: which; "" matches all.
        status: the answer; None: the connection is cut without one.
        times: how often.
        after: whether the request is carried out first (the answer alone is lost).
        delay_seconds: how long the answer takes.
        arrives_late: with a delay: whether the request is carried out only after it.
    """

    method: str = ""
    path: str = ""
    status: int | None = None
    times: int = 1
    after: bool = False
    delay_seconds: float = 0.0
    arrives_late: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None


class FakeGrafana:
    """State and address of the server."""

    def __init__(self) -> None:
        self.annotations: dict[int, dict[str, Any]] = {}
        self.accounts: dict[int, dict[str, Any]] = {}
        self.tokens: dict[int, dict[str, Any]] = {}
        self.failures: list[Failure] = []
        self.requests: list[tuple[str, str, int | None]] = []
        self.admin = ADMIN
        self.lock = threading.Lock()
        self._last_id = 0
        self.url = ""

    def new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def count(self, method: str, path: str) -> int:
        return sum(known == method and path in at for known, at, _ in self.requests)

    def texts(self) -> list[str]:
        return sorted(item["text"] for item in self.annotations.values())

    def keys(self) -> list[tuple[str, ...]]:
        """The tag sets, sorted: equal ones are doubles."""
        return sorted(tuple(sorted(item["tags"])) for item in self.annotations.values())

    def forget_everything(self) -> None:
        """The database is new, as after `down -v`."""
        with self.lock:
            self.annotations.clear()
            self.accounts.clear()
            self.tokens.clear()


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "_Server"

    def handle_any(self) -> None:
        grafana = self.server.grafana
        parts = urlsplit(self.path)
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        failure = self._failure(parts.path)
        if failure is not None and failure.delay_seconds and failure.arrives_late:
            time.sleep(failure.delay_seconds)
        if failure is not None and not failure.after:
            status, body = failure.status, {"message": "made to fail"}
        else:
            try:
                with grafana.lock:
                    status, body = self._answer(parts.path.rstrip("/"), parse_qs(parts.query), content)
            except _RefusedError as error:
                status, body = error.status, {"message": str(error)}
            if failure is not None:
                status = failure.status
        if failure is not None and failure.delay_seconds and not failure.arrives_late:
            time.sleep(failure.delay_seconds)
        grafana.requests.append((self.command, parts.path, status))
        if status is None:
            self.close_connection = True
            return
        payload = json.dumps(body).encode() if failure is None or failure.body is None else failure.body
        self.send_response(status)
        for name, value in (failure.headers if failure else {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the names that are called

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def _failure(self, path: str) -> Failure | None:
        with self.server.grafana.lock:
            for failure in self.server.grafana.failures:
                if failure.times and failure.method in ("", self.command) and failure.path in path:
                    failure.times -= 1
                    return failure
        return None

    def _answer(self, path: str, query: dict[str, list[str]], content: bytes) -> tuple[int, Any]:
        role = self._role()
        head, _, rest = path.removeprefix("/api/").partition("/")
        if head == "annotations":
            return self._annotations(role, rest, query, content)
        if head == "serviceaccounts":
            if role != "Admin":
                raise _RefusedError(403, "You'll need additional permissions to perform this action.")
            return self._accounts(rest, query, content)
        raise _RefusedError(404, "Not found")

    def _role(self) -> str:
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        if kind == "Basic" and base64.b64decode(value).decode() == ":".join(self.server.grafana.admin):
            return "Admin"
        if kind == "Bearer":
            for token in self.server.grafana.tokens.values():
                if token["key"] == value:
                    return str(self.server.grafana.accounts[token["account"]]["role"])
        raise _RefusedError(401, "Invalid username or password" if kind == "Basic" else "Invalid API key")

    def _annotations(
        self, role: str, rest: str, query: dict[str, list[str]], content: bytes
    ) -> tuple[int, Any]:
        known = self.server.grafana.annotations
        if self.command == "GET" and not rest:
            if unknown := set(query) - FIND_PARAMETERS:
                raise _RefusedError(400, f"unknown parameters {unknown}")
            tags = query.get("tags", [])
            limit = int(query.get("limit", ["100"])[0])
            found = [item for item in known.values() if set(tags) <= set(item["tags"])]
            return 200, sorted(found, key=lambda item: -item["time"])[:limit]
        if role not in ("Editor", "Admin"):
            raise _RefusedError(403, "You'll need additional permissions to perform this action.")
        if self.command == "POST" and not rest:
            body = _body(content, ANNOTATION_FIELDS)
            if not body.get("text"):
                raise _RefusedError(400, "text field should not be empty")
            _check_annotation(body)
            number = self.server.grafana.new_id()
            start = body.get("time", round(time.time() * 1000))
            known[number] = {
                "id": number, "alertId": 0, "dashboardUID": body.get("dashboardUID"), "panelId": 0, "userId": 1,
                "time": start, "timeEnd": body.get("timeEnd", start), "text": body["text"],
                "tags": [tag.strip() for tag in body.get("tags", [])], "data": {},
            }  # fmt: skip
            return 200, {"message": "Annotation added", "id": number}
        if not rest.isdigit() or int(rest) not in known:
            raise _RefusedError(404, "Annotation not found")
        if self.command == "PATCH":
            body = _body(
                content, {name: ANNOTATION_FIELDS[name] for name in ("time", "timeEnd", "tags", "text")}
            )
            _check_annotation(known[int(rest)] | body)
            known[int(rest)] |= body
            return 200, {"message": "Annotation patched"}
        if self.command == "DELETE":
            del known[int(rest)]
            return 200, {"message": "Annotation deleted"}
        raise _RefusedError(405, "Method not allowed")

    def _accounts(self, rest: str, query: dict[str, list[str]], content: bytes) -> tuple[int, Any]:
        grafana = self.server.grafana
        parts = rest.split("/") if rest else []
        if self.command == "GET" and parts == ["search"]:
            name = query.get("query", [""])[0]
            found = [item for item in grafana.accounts.values() if name in item["name"]]
            return 200, {"totalCount": len(found), "serviceAccounts": found, "page": 1, "perPage": 100}
        if self.command == "POST" and not parts:
            body = _body(content, {"name": str, "role": str, "isDisabled": bool})
            if body.get("role") not in ("Viewer", "Editor", "Admin"):
                raise _RefusedError(400, "invalid role")
            if any(item["name"] == body["name"] for item in grafana.accounts.values()):
                raise _RefusedError(400, "service account already exists")
            number = grafana.new_id()
            grafana.accounts[number] = {"id": number, **body}
            return 201, grafana.accounts[number]
        if not parts or not parts[0].isdigit() or int(parts[0]) not in grafana.accounts:
            raise _RefusedError(404, "service account not found")
        account = int(parts[0])
        mine = {number: item for number, item in grafana.tokens.items() if item["account"] == account}
        if parts[1:] == ["tokens"] and self.command == "GET":
            return 200, [
                {"id": number, "name": item["name"], "hasExpired": False} for number, item in mine.items()
            ]
        if parts[1:] == ["tokens"] and self.command == "POST":
            body = _body(content, {"name": str, "secondsToLive": int})
            if any(item["name"] == body["name"] for item in mine.values()):
                raise _RefusedError(409, "service account token already exists")
            number = grafana.new_id()
            key = f"glsa_canary_{number}"
            grafana.tokens[number] = {"name": body["name"], "key": key, "account": account}
            return 200, {"id": number, "name": body["name"], "key": key}
        if len(parts) == 3 and parts[1] == "tokens" and self.command == "DELETE" and int(parts[2]) in mine:
            del grafana.tokens[int(parts[2])]
            return 200, {"message": "API key deleted"}
        raise _RefusedError(404, "Not found")


def _body(content: bytes, fields: dict[str, type]) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except ValueError as error:
        raise _RefusedError(400, "bad request data") from error
    if not isinstance(body, dict):
        raise _RefusedError(400, "bad request data")
    for name, value in body.items():
        if name not in fields:
            raise _RefusedError(400, f"unknown field {name}")
        if type(value) is not fields[name]:
            raise _RefusedError(400, f"{name} must be of type {fields[name].__name__}")
    return body


def _check_annotation(body: dict[str, Any]) -> None:
    """Epoch numbers in milliseconds; a region that does not end before it begins; tags are texts."""
    for name in ("time", "timeEnd"):
        if name in body and not 10**12 < body[name] < 10**13:
            raise _RefusedError(400, f"{name} must be epoch milliseconds")
    if body.get("timeEnd", body.get("time", 0)) < body.get("time", 0):
        raise _RefusedError(400, "timeEnd is before time")
    if not all(isinstance(tag, str) and tag and len(tag) <= 200 for tag in body.get("tags", [])):
        raise _RefusedError(400, "tags must be texts")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a slow answer is not waited for

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that did not wait for a slow answer, or was killed, is what some tests are about."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], grafana: FakeGrafana) -> None:
        self.grafana = grafana
        super().__init__(address, _Handler)


@contextmanager
def grafana_server(grafana: FakeGrafana, port: int = 0) -> Iterator[FakeGrafana]:
    """Serve this state; the same state can be served again, as after a restart."""
    server = _Server(("127.0.0.1", port), grafana)
    grafana.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield grafana
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
