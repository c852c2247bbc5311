"""Start a real vLLM on the CPU and wait until it serves."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import requests

from tests.real.environment import ensure_environment, use

Topology = Literal["api_server", "serve"]

HOST = "127.0.0.1"
STILL_SECONDS = 600
"""Longest time without a sign of life (a line of log, a second of CPU). A start as such has no limit: a minute on an idle
machine with two cores, more than ten on a busy one."""
STOP_SECONDS = 40
PROGRESS_SECONDS = 5
LOG_TAIL_LINES = 30


class EngineStartError(Exception):
    """The engine did not become ready; the message ends with the tail of its log."""


@dataclass(frozen=True)
class RunningEngine:
    """A vLLM that serves. `url` has no path (`http://127.0.0.1:8100`), `model` is the served name."""

    url: str
    model: str
    model_directory: Path
    block_size: int
    ranks: int
    topology: Topology
    pid: int
    log_path: Path
    startup_seconds: float
    guard: "subprocess.Popen[str]"

    def stop(self) -> None:
        """End the engine and all its processes; harmless when it has ended already."""
        _stop(self.guard)

    def kill(self) -> None:
        """End all its processes at once, as a crash or a lost machine does: nobody says goodbye."""
        os.killpg(self.pid, signal.SIGKILL)  # the guard gave it a group of its own
        self.stop()


def start_vllm(
    model_directory: Path,
    *,
    port: int,
    ranks: int,
    block_size: int,
    served_name: str,
    log_path: Path,
    topology: Topology = "api_server",
    max_model_len: int = 8192,
    extra_args: Sequence[str] = (),
    python: Path | None = None,
) -> RunningEngine:
    """Start vLLM with prefix caching and `ranks` data-parallel ranks; return once it answers.

    `topology`: "api_server" is one API server process for all ranks, "serve" is `vllm serve`, one per rank.
    `block_size`: a multiple of 32 tokens, the CPU backend takes no other. `extra_args` go last, so they win.
    `python`: an interpreter with vLLM; the cached environment's when None.
    The engine ends with `stop()`, and also when this process dies in any way.

    Raises EngineStartError: the port is taken, the engine died, or made no progress for STILL_SECONDS.
    """
    python = python or ensure_environment()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise EngineStartError(f"port {port} cannot be used for the engine: {error}") from error

    if topology == "serve":
        entry = [str(python.with_name("vllm")), "serve", str(model_directory)]
    else:
        entry = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_directory)]
    command = [
        *entry,
        *("--host", HOST),
        *("--port", str(port)),
        *("--served-model-name", served_name),
        *("--max-model-len", str(max_model_len)),
        *("--dtype", "bfloat16"),
        "--enforce-eager",
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        *("--block-size", str(block_size)),
        *("--data-parallel-size", str(ranks)),
        *extra_args,
    ]
    log_path.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with log_path.open("wb") as log, use(python.parents[1]) as in_use:
        guard = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("guard.py")), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=_engine_environment(),
            pass_fds=[in_use.fileno()],  # the guard holds it on
            start_new_session=True,
        )
    try:
        pid = _engine_pid(guard, log_path)
        _wait_until_ready(guard, pid, f"http://{HOST}:{port}", started, log_path)
    except BaseException:
        _stop(guard)
        raise
    return RunningEngine(
        url=f"http://{HOST}:{port}",
        model=served_name,
        model_directory=model_directory,
        block_size=block_size,
        ranks=ranks,
        topology=topology,
        pid=pid,
        log_path=log_path,
        startup_seconds=time.monotonic() - started,
        guard=guard,
    )


def _engine_environment() -> dict[str, str]:
    environment = dict(os.environ)
    loopback = ",".join(filter(None, [environment.get("NO_PROXY"), HOST, "localhost"]))
    environment.update(
        NO_PROXY=loopback,
        no_proxy=loopback,
        VLLM_SERVER_DEV_MODE="1",  # opens POST /reset_prefix_cache
        VLLM_CPU_KVCACHE_SPACE="1",  # GiB for each rank
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS="1",
    )
    return environment


def _engine_pid(guard: "subprocess.Popen[str]", log_path: Path) -> int:
    assert guard.stdout is not None
    line = guard.stdout.readline()
    if not line:
        raise EngineStartError(f"the engine could not be started\n{_log_tail(log_path)}")
    return int(line)


def _sign_of_life(pid: int, log_path: Path) -> tuple[int, int]:
    """Bytes of log, and seconds of CPU that the processes of the engine's group have used."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[2]) == pid:  # the process group
            ticks += int(fields[11]) + int(fields[12])
    return log_path.stat().st_size, ticks // os.sysconf("SC_CLK_TCK")


def _wait_until_ready(
    guard: "subprocess.Popen[str]", pid: int, url: str, started: float, log_path: Path
) -> None:
    """Return once /health answers 200; a dot on stderr now and then shows that we wait."""
    session = requests.Session()
    session.trust_env = False  # a proxy has no business on the loopback
    print(f"[vllm-cpu] starting the engine at {url} ", end="", file=sys.stderr, flush=True)
    next_dot = last_sign = started
    seen: tuple[int, int] | None = None
    while True:
        waited = time.monotonic() - started
        if guard.poll() is not None:
            raise EngineStartError(
                f"the engine ended with exit code {guard.returncode} after {waited:.0f} s\n{_log_tail(log_path)}"
            )
        sign = _sign_of_life(pid, log_path)
        if sign != seen:
            seen, last_sign = sign, time.monotonic()
        if time.monotonic() - last_sign > STILL_SECONDS:
            raise EngineStartError(f"the engine did nothing for {STILL_SECONDS} s\n{_log_tail(log_path)}")
        try:
            if session.get(f"{url}/health", timeout=5).status_code == 200:
                break
        except requests.RequestException:
            pass  # not listening yet; the two checks above bound the wait
        if time.monotonic() > next_dot:
            print(".", end="", file=sys.stderr, flush=True)
            next_dot += PROGRESS_SECONDS
        time.sleep(0.3)
    print(f" ready after {waited:.0f} s", file=sys.stderr, flush=True)


def _log_tail(log_path: Path) -> str:
    lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join([f"the last lines of {log_path}:", *lines[-LOG_TAIL_LINES:]])


def _stop(guard: "subprocess.Popen[str]") -> None:
    assert guard.stdin is not None
    assert guard.stdout is not None
    guard.stdin.close()
    guard.wait(STOP_SECONDS)
    guard.stdout.close()
