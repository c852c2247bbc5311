"""What can be had over HTTP, and what cannot."""

import http.client
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from analyzer.watch import web
from analyzer.watch.web import open_artifact, report_path, serving
from contract.errors import ServiceError

SECRET = b"canary-of-the-host"
REPORT = b"<!doctype html>a report"


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """One measurement with everything, and secrets around it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "report.html").write_bytes(SECRET)
    folder = tmp_path / "artifacts"
    stamp = folder / "team" / "job a_1" / "result" / "runs" / "20260101_000000"
    stamp.mkdir(parents=True)
    (stamp / "report.html").write_bytes(REPORT)
    (stamp / "analysis.json").write_bytes(b"{}")
    for name in ("measurement.json", "events.jsonl", "baseline.prom", ".report.html.x1"):
        (stamp / name).write_bytes(SECRET)
    (stamp.parents[1] / "job.manifest.json").write_bytes(SECRET)
    (stamp.parents[1] / "analysis.json").write_bytes(SECRET)
    return folder


Fetched = tuple[int, dict[str, str], bytes]


@pytest.fixture
def port(artifacts: Path) -> Iterator[int]:
    reports = [("/reports/x?a=<b>", "<i>title</i>")]
    with serving("127.0.0.1", 0, artifacts, lambda: b"hitlab_x 1\n", lambda: reports) as bound:
        yield bound


def fetch(port: int, path: str, method: str = "GET") -> Fetched:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


GOOD = "/reports/team/job%20a_1/result/runs/20260101_000000"


def test_a_report_is_served_with_its_policy(port: int, artifacts: Path) -> None:
    status, headers, body = fetch(port, f"{GOOD}/report.html")
    assert (status, body) == (200, REPORT)
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "sandbox" in policy
    assert "allow-scripts" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert fetch(port, f"{GOOD}/analysis.json")[2] == b"{}"
    stamp = artifacts / "team" / "job a_1" / "result" / "runs" / "20260101_000000"
    assert report_path(artifacts, stamp / "report.html") == f"{GOOD}/report.html"


def test_head_tells_the_size_and_sends_nothing(port: int) -> None:
    for path in (f"{GOOD}/report.html", "/", "/metrics", "/nothing"):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(
                f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            )
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert body == b""
        assert b"Content-Length: " in head
        assert b"Content-Security-Policy: " in head


@pytest.mark.parametrize(
    "path",
    [
        f"{GOOD}/measurement.json",
        f"{GOOD}/events.jsonl",
        f"{GOOD}/.report.html.x1",
        f"{GOOD}/",
        GOOD,
        "/reports/",
        "/reports/team/job%20a_1/result/analysis.json",
        "/reports/../outside/report.html",
        "/reports/team/../../outside/result/runs/x/report.html",
        "/reports/%2e%2e/outside/result/runs/x/report.html",
        "/reports/team/job%20a_1/result/runs/../../../../../outside/result/runs/x/report.html",
        "/reports/team/job%20a_1/result/runs/20260101_000000%2f..%2f20260101_000000/report.html",
        "/reports//etc/result/runs/x/report.html",
        "/reports/%00/result/runs/x/report.html",
        "/reports/team%5c..%5c/result/runs/x/report.html",
        f"/reports/{'a/' * 3000}result/runs/x/report.html",
        f"/reports/{'a' * 300}/result/runs/x/report.html",
        "/reports/ü%ff/result/runs/x/report.html",
        "/etc/passwd",
        "/favicon.ico",
    ],
)
def test_nothing_else_is(artifacts: Path, path: str) -> None:
    assert open_artifact(artifacts, path) is None


def test_the_server_gives_the_same_answer(port: int) -> None:
    for path in ("/reports/../outside/report.html", f"{GOOD}/measurement.json", "/etc/passwd"):
        status, headers, body = fetch(port, path)
        assert status == 404
        assert SECRET not in body
        assert "Content-Security-Policy" in headers


@pytest.mark.parametrize("where", ["report.html", "20260101_000000", "runs", "result", "job a_1", "team"])
def test_no_link_is_followed(artifacts: Path, where: str) -> None:
    """A link in any place of the path, to a folder that has all the rest, or to a file."""
    path = artifacts / "team" / "job a_1" / "result" / "runs" / "20260101_000000" / "report.html"
    assert open_artifact(artifacts, f"{GOOD}/report.html") is not None
    replaced = next(item for item in (path, *path.parents) if item.name == where)
    moved = artifacts.parent / "moved"
    replaced.rename(moved)
    replaced.symlink_to(moved)
    assert path.read_bytes() == REPORT, "the link leads there"
    assert open_artifact(artifacts, f"{GOOD}/report.html") is None


def test_only_plain_files_are_read(artifacts: Path) -> None:
    """Neither does a pipe hold a thread, nor is a folder a report."""
    path = artifacts / "team" / "job a_1" / "result" / "runs" / "20260101_000000" / "report.html"
    path.unlink()
    os.mkfifo(path)
    assert open_artifact(artifacts, f"{GOOD}/report.html") is None
    path.unlink()
    path.mkdir()
    assert open_artifact(artifacts, f"{GOOD}/report.html") is None


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO"])
def test_it_is_read_only(port: int, method: str) -> None:
    status, headers, _ = fetch(port, f"{GOOD}/report.html", method)
    assert status == 405
    assert headers["Allow"] == "GET, HEAD"


def test_metrics_health_and_an_index_that_escapes(port: int) -> None:
    assert fetch(port, "/metrics")[2] == b"hitlab_x 1\n"
    assert fetch(port, "/healthz")[::2] == (200, b"ok\n")
    status, headers, body = fetch(port, "/")
    assert status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert b"&lt;i&gt;title" in body
    assert b"a=&lt;b&gt;" in body


@pytest.mark.parametrize("line", ["GET", "GET / HTTP/9.9.9", "\x00\x01", "GET " + "a" * 70000 + " HTTP/1.1"])
def test_nonsense_ends_with_an_error_and_the_server_goes_on(port: int, line: str) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(line.encode() + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        try:
            assert b"200 OK" not in connection.recv(65536)
        except ConnectionResetError:
            assert len(line) > 65536, "cut off with most of it unread"
    assert fetch(port, "/healthz")[0] == 200


def test_a_port_that_is_taken_is_one_line(port: int, artifacts: Path) -> None:
    with (
        pytest.raises(ServiceError, match="--port"),
        serving("127.0.0.1", port, artifacts, lambda: b"", list),
    ):
        pass


def exchange(port: int, sent: bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(sent)
        answer = b""
        while True:
            try:
                piece = connection.recv(65536)
            except ConnectionResetError:
                return answer
            if not piece:
                return answer
            answer += piece


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9400",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil",
        "",
        "127.0.0.1@evil.example",
        "evil.example@127.0.0.1",
        "[::1",
        "[evil]",
        "127.0.0.1, evil.example",
        "xn--lcalhost-8d4b",
    ],
)
def test_a_name_that_somebody_else_may_own_is_not_answered(port: int, host: str) -> None:
    """A browser sends the name that it has looked up: a stranger's, which leads here for the moment."""
    for path in ("/", "/metrics", f"{GOOD}/report.html"):
        answer = exchange(port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert answer.split()[1] in (b"421", b"400")
        assert b"hitlab_x" not in answer
        assert REPORT not in answer


@pytest.mark.parametrize(
    "head",
    [
        "Host: 127.0.0.1\r\nHost: evil.example",
        "Host: evil.example\r\nHost: 127.0.0.1",
        "X-Forwarded-Host: 127.0.0.1",
    ],
)
def test_exactly_one_name(port: int, head: str) -> None:
    answer = exchange(port, f"GET /metrics HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 421 ")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:9400",
        "localhost:1",
        "LOCALHOST",
        "a.localhost",
        "[::1]:9400",
        "192.168.7.9",
        "analyzer:9400",
        "Gpu.Example.",
    ],
)
def test_names_of_ours_are(artifacts: Path, host: str) -> None:
    names = ("analyzer", "gpu.example")
    with serving("127.0.0.1", 0, artifacts, lambda: b"hitlab_x 1\n", list, names) as port:
        answer = exchange(
            port, f"GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        )
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("length", ["Content-Length: 44", "Transfer-Encoding: chunked"])
def test_a_body_is_not_the_next_request(port: int, length: str) -> None:
    smuggled = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = exchange(
        port, f"GET /healthz HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n{smuggled}".encode()
    )
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"hitlab_x" not in answer


@pytest.mark.parametrize("target", ["http://[::1/", "//[", "http://[::1]x/", "*", "http://"])
def test_an_address_that_is_none_is_no_fault_of_ours(
    port: int, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = exchange(port, f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.split()[1] in (b"400", b"404", b"200")
    assert not caplog.records, "no traceback"


def test_slow_clients_hold_no_more_than_their_share(artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a thread: there are not more of them than a few, and none for ever."""
    monkeypatch.setattr(web, "MOST_CLIENTS", 3)
    with serving("127.0.0.1", 0, artifacts, lambda: b"", list) as port:
        slow = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(3)]
        for connection in slow:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")  # each has its thread now
            connection.sendall(b"GET /heal")
        before = threading.active_count()
        for _ in range(5):
            refused = exchange(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert refused in (b"", web._NO_ROOM)
        assert threading.active_count() <= before
        slow[0].close()
        wait_for(lambda: exchange(port, b"GET /healthz HTTP/1.0\r\n\r\n").endswith(b"ok\n"))
        # What trickles is over after its time, too.
        monkeypatch.setattr(web, "REQUEST_SECONDS", 0.2)
        trickling = socket.create_connection(("127.0.0.1", port), timeout=20)
        ended = threading.Event()

        def trickle() -> None:
            while not ended.is_set():
                try:
                    trickling.sendall(b"x")
                except OSError:
                    return
                ended.wait(0.02)

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            with suppress(ConnectionResetError):
                while trickling.recv(65536):
                    pass
        finally:
            ended.set()
            thread.join()
            for connection in (*slow, trickling):
                connection.close()


def wait_for(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)
