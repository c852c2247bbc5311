"""A simulated engine in a process of its own, which ends with the one that started it."""

import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO

import orjson

from contract.errors import ServiceError
from simulator.config import SimulatorConfig

CONFIG_ON_STDIN = "--config-on-stdin"
_STOP_SECONDS = 2.0


class RunningSimulator:
    """A simulator that accepts requests at `url`. As a context manager it stops at the end of the block."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url = url
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process, at the latest after two seconds; nothing happens when it has ended already."""
        _end(self._process)

    def __enter__(self) -> "RunningSimulator":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_simulator(
    config: SimulatorConfig, *, log: Path | None = None, timeout_seconds: float = 60.0
) -> RunningSimulator:
    """Start a simulator and wait until it accepts requests.

    The configuration goes through a pipe, so that no key shows up among the processes; when the pipe closes, because
    this process has ended in whatever way, the simulator ends too.

    Args:
        log: file that its stderr is appended to; None keeps it only for the message of a failed start.

    Raises:
        ServiceError: it did not start; the message has its last line of stderr.
    """
    with log.open("ab") if log is not None else tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "simulator", CONFIG_ON_STDIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        try:
            url = _await_url(process, config, time.monotonic() + timeout_seconds)
        except BaseException:
            _end(process)
            raise
        if url is None:
            _end(process)
            raise ServiceError(f"simulator did not start: {_last_line(stderr, log)}")
    return RunningSimulator(url, process)


def _await_url(process: subprocess.Popen[bytes], config: SimulatorConfig, deadline: float) -> str | None:
    assert process.stdin is not None  # noqa: S101 - both are pipes, see above
    assert process.stdout is not None  # noqa: S101
    try:
        process.stdin.write(orjson.dumps(_plain(config)) + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            return None
        piece = os.read(process.stdout.fileno(), 4096)
        if not piece:
            process.wait(_STOP_SECONDS)
            return None
        line += piece
    return line.decode().strip()


def _plain(config: SimulatorConfig) -> dict[str, object]:
    values = config.model_dump(mode="json")
    if config.api_key is not None:
        values["api_key"] = config.api_key.get_secret_value()
    return values


def _last_line(stderr: IO[bytes], log: Path | None) -> str:
    if log is not None:
        text = log.read_bytes()
    else:
        stderr.seek(0)
        text = stderr.read()
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it wrote nothing to stderr and gave no address in time"


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
