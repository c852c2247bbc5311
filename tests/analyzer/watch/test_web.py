"""What can be had over HTTP, and what cannot."""

import http.client
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

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
            connection.sendall(f"HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
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
