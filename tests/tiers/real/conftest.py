"""Real LMCache for tests/tiers/real: its environment, cache servers in every transfer mode, a Redis, the commands.

Where one cannot be had (no CPU build of torch, no disk, no Debian packages) tests skip with the reason; under `CI=true`
they fail.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests

from environments.cached import NotAvailableError, cache_directory
from environments.tiers import ensure_environment

HOST = "127.0.0.1"
QUIET = {
    "LMCACHE_TRACK_USAGE": "false",
    "DO_NOT_TRACK": "1",
    "LMCACHE_DISABLE_BANNER": "1",
    "LMCACHE_LOG_LEVEL": "ERROR",
}
SMALL = "(2,128,16,2,64):float16:4"
REDIS_PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")


@dataclass(frozen=True)
class Ended:
    """How a command ended, and how long it took."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document

    def status(self) -> dict[str, str]:
        return {item["name"]: item["status"] for item in self.json["checks"]}


@dataclass
class CacheServer:
    """A running `lmcache server`."""

    port: int
    http_port: int
    process: subprocess.Popen[bytes]
    log: Path
    options: tuple[str, ...] = field(default=())

    @property
    def here(self) -> list[str]:
        """The options that lead a bench here."""
        return [
            "--rpc-url",
            f"tcp://{HOST}:{self.port}",
            "--url",
            f"http://{HOST}:{self.http_port}",
            "--mode",
            "cpu",
        ]

    def objects(self) -> int:
        status = requests.get(f"http://{HOST}:{self.http_port}/status", timeout=5).json()
        return int(status["storage_manager"]["l1_manager"]["total_object_count"])

    def read_locks(self) -> int:
        status = requests.get(f"http://{HOST}:{self.http_port}/status", timeout=5).json()
        return int(status["storage_manager"]["l1_manager"]["read_locked_count"])


Run = Callable[..., Ended]


def unavailable(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def ended(command: list[str], timeout: float, environment: dict[str, str] | None = None) -> Ended:
    begin = time.monotonic()
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - begin)


@pytest.fixture(scope="session")
def tiers_python() -> Path:
    """The python of an environment that has LMCache."""
    try:
        return ensure_environment()
    except NotAvailableError as error:
        unavailable(f"no LMCache: {error}")
        raise


@pytest.fixture(scope="session")
def hitlab(tiers_python: Path) -> Run:
    """HitLab's command as a user of the checkout starts it: without LMCache beside it."""
    command = Path(sys.executable).parent / "hitlab"

    def run(*arguments: str | Path, timeout: float = 120, environment: dict[str, str] | None = None) -> Ended:
        return ended([str(command), *map(str, arguments)], timeout, environment)

    return run


@pytest.fixture(scope="session")
def original(tiers_python: Path) -> Run:
    """LMCache's own command."""

    def run(*arguments: str, timeout: float = 120, environment: dict[str, str] | None = None) -> Ended:
        command = [str(tiers_python.parent / "lmcache"), *arguments]
        return ended(command, timeout, {**QUIET, **(environment or {})})

    return run


@pytest.fixture(scope="session")
def start_server(
    tiers_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., CacheServer]]:
    """Starts `lmcache server` with options and waits until it is healthy."""
    running: list[CacheServer] = []

    def start(*options: str) -> CacheServer:
        log = tmp_path_factory.mktemp("server") / "log"
        port, http_port = free_port(), free_port()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *(str(tiers_python.parent / "lmcache"), "server", "--host", HOST, "--port", str(port)),
                    *(
                        "--http-port",
                        str(http_port),
                        "--l1-size-gb",
                        "0.5",
                        "--eviction-policy",
                        "LRU",
                        *options,
                    ),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **QUIET},
            )
        server = CacheServer(port, http_port, process, log, options)
        running.append(server)
        until = time.monotonic() + 90
        while time.monotonic() < until:
            if process.poll() is not None:
                break
            try:
                if requests.get(f"http://{HOST}:{http_port}/healthcheck", timeout=2).ok:
                    return server
            except requests.RequestException:
                time.sleep(0.3)
        pytest.fail(f"lmcache server did not start:\n{log.read_text(errors='replace')[-3000:]}")

    yield start
    for server in running:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGINT)
    for server in running:
        try:
            server.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()


@pytest.fixture(scope="session")
def lmcache_driven(start_server: Callable[..., CacheServer]) -> CacheServer:
    """A server as it comes: LMCache-driven transfers only."""
    return start_server()


@pytest.fixture(scope="session")
def both_modes(
    start_server: Callable[..., CacheServer], tmp_path_factory: pytest.TempPathFactory
) -> CacheServer:
    """Both transfer modes, engine-driven through shared memory, and an L2 of files below."""
    adapter = json.dumps({"type": "fs", "base_path": str(tmp_path_factory.mktemp("l2"))})
    return start_server(
        "--supported-transfer-mode", "auto", "--shm-name", f"hitlab{os.getpid()}", "--l2-adapter", adapter
    )


@pytest.fixture(scope="session")
def inline(start_server: Callable[..., CacheServer]) -> CacheServer:
    """Engine-driven transfers without shared memory: everything goes through the socket."""
    return start_server("--supported-transfer-mode", "engine_driven")


@pytest.fixture(scope="session")
def redis_command() -> list[str]:
    """A Redis from Debian's packages, unpacked and not installed: the package would start a service."""
    found = shutil.which("redis-server")
    if found:
        return [found]
    root = cache_directory() / "redis"
    program = root / "usr" / "bin" / "redis-server"
    if not program.exists():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            got = subprocess.run(
                ["apt-get", "download", "-qq", *REDIS_PACKAGES],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            packages = sorted(Path(folder).glob("*.deb"))
            if got.returncode != 0 or len(packages) < len(REDIS_PACKAGES):
                unavailable(
                    f"no redis-server, and its Debian packages cannot be had ({got.stderr.strip()[-200:]})"
                )
            for package in packages:
                subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    libraries = next((root / "usr" / "lib").glob("*-linux-gnu"))
    return ["env", f"LD_LIBRARY_PATH={libraries}", str(program)]


@pytest.fixture
def redis(redis_command: list[str], tmp_path: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A Redis of its own, and its process."""
    port = free_port()
    command = [*redis_command, "--port", str(port), "--bind", HOST, "--save", "", "--dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            break
        except OSError:
            time.sleep(0.05)
    else:
        process.kill()
        pytest.fail("redis-server did not start")
    yield port, process
    process.kill()
    process.wait()
