"""A real Prometheus with the configuration of the stack, on loopback ports."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 30.0


def program(name: str = "prometheus") -> str:
    """Where it is. Skips where it is not, and fails in CI."""
    path = shutil.which(name)
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is not installed; it is in Debian's package prometheus")
        pytest.skip(f"{name} is not installed (Debian: apt-get install prometheus)")
    return path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass(frozen=True)
class Prometheus:
    """Its HTTP API."""

    url: str

    def ask(self, path: str, **parameters: Any) -> Any:
        """`data` of an answer; a failure names the query."""
        with requests.Session() as session:
            session.trust_env = False
            answer = session.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=30)
        body = answer.json()
        assert body["status"] == "success", f"{parameters}: {body.get('error')}"
        return body["data"]

    def over_time(self, expression: str, start: float, end: float) -> list[dict[str, Any]]:
        """Series with a value per second, as a panel asks."""
        data = self.ask("query_range", query=expression, start=start, end=end, step=1)
        return list(data["result"])

    def now(self, expression: str, when: float | None = None) -> list[dict[str, Any]]:
        return list(self.ask("query", query=expression, **({} if when is None else {"time": when}))["result"])


@contextmanager
def running_prometheus(folder: Path, artifacts: Path, analyzer_port: int) -> Iterator[Prometheus]:
    """Prometheus with prometheus.demo.yml; only addresses and folders are those of this machine.

    Args:
        folder: for its data, configuration and log.
    """
    port = free_port()
    text = (REPOSITORY / "prometheus" / "prometheus.demo.yml").read_text()
    for before, after in (
        ("/artifacts/", f"{artifacts}/"),
        ("analyzer:9400", f"127.0.0.1:{analyzer_port}"),
        ("localhost:9090", f"127.0.0.1:{port}"),
        ("rules/*.yml", f"{REPOSITORY}/prometheus/rules/*.yml"),
    ):
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    (folder / "prometheus.yml").write_text(text)
    command = [
        program(),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    compose = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())
    settings = compose["services"]["prometheus"]["environment"]
    environment = os.environ | {
        name: str(value).replace("/artifacts/", f"{artifacts}/") for name, value in settings.items()
    }
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            _wait_until_ready(f"http://127.0.0.1:{port}", process, folder / "prometheus.log")
            yield Prometheus(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait(10)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    with requests.Session() as session:
        session.trust_env = False
        while True:
            try:
                if session.get(f"{url}/-/ready", timeout=2).ok:
                    return
            except requests.ConnectionError:
                pass  # not listening yet
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
