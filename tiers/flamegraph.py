"""Flame graphs while a bench runs: one recorder per run, beside it as a child process.

py-spy draws wall clock and interpreter lock, perf the time on a CPU, the tools of bcc what threads wait for. What is
missing on the host is named before anything runs; nothing is ever downloaded.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.errors import ScenarioError, ServiceError

MODES = ("on-cpu", "off-cpu", "wakeup", "offwake", "wall", "gil")
FOLDER = Path("/tmp/lmcache_bench_flames")  # noqa: S108 - where the guide says they are
BCC = {"off-cpu": "offcputime", "wakeup": "wakeuptime", "offwake": "offwaketime"}
SETTLE_SECONDS = 1.0
RATE = 200
PR_SET_PTRACER = 0x59616D61


@dataclass(frozen=True)
class FlameGraphs:
    """What to record. `pid` None: this process itself."""

    modes: tuple[str, ...]
    output: Path | None
    scripts: Path
    pid: int | None = None

    def path(self, mode: str, subject: str) -> Path:
        """Where the graph of a mode goes; `subject` is the adapter's or server's name."""
        if self.output is None:
            return FOLDER / f"{subject}.{mode.replace('-', '')}.svg"
        if len(self.modes) == 1:
            return self.output
        return self.output.with_name(
            f"{self.output.stem}.{mode.replace('-', '')}{self.output.suffix or '.svg'}"
        )


def parse_modes(text: str) -> tuple[str, ...]:
    modes = tuple(part.strip() for part in text.split(",") if part.strip())
    wrong = [mode for mode in modes if mode not in MODES]
    if wrong or not modes:
        raise ScenarioError(f"--flamegraph-mode {text}: must be of {', '.join(MODES)}, separated by commas")
    return modes


def require_tools(graphs: FlameGraphs) -> None:
    """Raises ScenarioError naming everything that is missing, ServiceError for a process that is not there."""
    missing = []
    for mode in graphs.modes:
        if _tool(mode) is None:
            missing.append(f"{mode} needs {_name(mode)}")
        missing += [
            f"{mode} needs {script} in {graphs.scripts} (--flamegraph-scripts-dir)"
            for script in _scripts(mode)
            if not (graphs.scripts / script).is_file()
        ]
        if mode in BCC and os.geteuid() != 0:
            missing.append(f"{mode} needs root")
    if missing:
        raise ScenarioError("--flamegraph on: " + "; ".join(dict.fromkeys(missing)))
    if graphs.pid is not None and not Path(f"/proc/{graphs.pid}").exists():
        raise ServiceError(f"--profile-server-pid {graphs.pid}: there is no such process")


def _name(mode: str) -> str:
    return (
        "py-spy" if mode in ("wall", "gil") else "perf" if mode == "on-cpu" else f"{BCC[mode]} (bpfcc-tools)"
    )


def _tool(mode: str) -> str | None:
    # py-spy is a package: it may be beside our interpreter and not on the PATH.
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if mode in ("wall", "gil"):
        return shutil.which("py-spy", path=places)
    if mode == "on-cpu":
        return shutil.which("perf")
    return shutil.which(f"{BCC[mode]}-bpfcc") or shutil.which(BCC[mode])


def _scripts(mode: str) -> tuple[str, ...]:
    if mode in ("wall", "gil"):
        return ()
    return ("stackcollapse-perf.pl", "flamegraph.pl") if mode == "on-cpu" else ("flamegraph.pl",)


@contextmanager
def recording(
    graphs: FlameGraphs, mode: str, subject: Callable[[], str], say: Callable[[str], None]
) -> Iterator[None]:
    """Record during the block, then write the graph and say where. Raises ServiceError when there is none."""
    own = graphs.pid is None
    pid = os.getpid() if graphs.pid is None else graphs.pid
    # Python 3.12 and newer: Python frames get names, at a few percent.
    activate: Any = (
        getattr(sys, "activate_stack_trampoline", None) if own and mode in ("on-cpu", "off-cpu") else None
    )
    if activate is not None:
        activate("perf")
    with tempfile.TemporaryDirectory(prefix="hitlab-flame-") as folder:
        data = Path(folder, "data")
        with (Path(folder, "said")).open("wb") as said, data.open("wb") as folded:
            recorder = subprocess.Popen(  # noqa: S603 - a profiler, by its full path
                _command(mode, pid, data),
                stdin=subprocess.DEVNULL,
                stdout=folded if mode in BCC else said,
                stderr=said,
                start_new_session=True,
            )
        if own:
            # A child may not look into its parent unless the parent says so.
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(recorder.pid), 0, 0, 0)
        try:
            time.sleep(SETTLE_SECONDS)
            say(f"  [Profile] {mode} recording started (pid={pid})")
            yield
        finally:
            if activate is not None:
                deactivate: Any = getattr(sys, "deactivate_stack_trampoline")  # noqa: B009 - not in Python 3.11
                deactivate()
            if recorder.poll() is None:
                recorder.send_signal(signal.SIGINT)
            try:
                recorder.wait(timeout=60)
            except subprocess.TimeoutExpired:
                recorder.kill()
                recorder.wait()
        target = graphs.path(mode, subject())
        target.parent.mkdir(parents=True, exist_ok=True)
        _draw(mode, data, target, graphs.scripts, Path(folder, "said"))
        say(f"  [Profile] wrote {target}")


def _command(mode: str, pid: int, data: Path) -> list[str]:
    tool = _tool(mode)
    if tool is None:
        raise ScenarioError(f"--flamegraph on: {mode} needs {_name(mode)}")
    if mode in ("wall", "gil"):
        which = "--gil" if mode == "gil" else "--idle"
        drawing = ["--format", "flamegraph", "--output", str(data)]
        return [tool, "record", "--pid", str(pid), "--rate", str(RATE), "--threads", which, *drawing]
    if mode == "on-cpu":
        return [tool, "record", "-F", "99", "-g", "-p", str(pid), "-o", str(data)]
    return [tool, *(["-d"] if mode == "off-cpu" else []), "-f", "-p", str(pid)]


def _draw(mode: str, data: Path, target: Path, scripts: Path, said: Path) -> None:
    if not data.is_file() or not data.stat().st_size:
        words = said.read_text(errors="replace").strip().splitlines()
        raise ServiceError(
            f"--flamegraph {mode}: nothing was recorded ({words[-1] if words else 'no samples'})"
        )
    if mode in ("wall", "gil"):
        shutil.move(data, target)
        return
    text = data.read_bytes()
    if mode == "on-cpu":
        text = _piped([_tool(mode) or "perf", "script", "-i", str(data)], b"")
        text = _piped([str(scripts / "stackcollapse-perf.pl")], text)
    target.write_bytes(_piped([str(scripts / "flamegraph.pl"), "--title", mode], text))


def _piped(command: Sequence[str], text: bytes) -> bytes:
    done = subprocess.run(list(command), input=text, capture_output=True, check=False)  # noqa: S603 - chosen by the user
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise ServiceError(f"{Path(command[0]).name} failed ({words[-1] if words else done.returncode})")
    return done.stdout
