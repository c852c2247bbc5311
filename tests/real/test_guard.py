"""No engine outlives its test run, and none is blocked by what it prints."""

import os
import subprocess
import sys
import time
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")

# A parent that ends on SIGTERM and a child that does not; prints the child's process id once both are there.
STUBBORN_FAMILY = """
import signal, subprocess, sys
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, file=sys.stderr, flush=True)
process.wait()
"""


def start(code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(GUARD), sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def runs(pid: int) -> bool:
    """Whether a process does anything still (the one waiting to be reaped does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_all_processes_end_when_the_test_run_is_gone() -> None:
    guard = start(STUBBORN_FAMILY)
    assert guard.stdin
    assert guard.stdout
    assert guard.stderr
    parent, child = int(guard.stdout.readline()), int(guard.stderr.readline())
    assert runs(parent)
    assert runs(child)

    guard.stdin.close()  # what the kernel does for a process that was killed

    guard.wait(10)
    deadline = time.monotonic() + 5
    while (runs(parent) or runs(child)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(parent)
    assert not runs(child)
    guard.stdout.close()
    guard.stderr.close()


def test_output_goes_to_stderr_and_the_exit_code_comes_through(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        guard = subprocess.Popen(
            [sys.executable, str(GUARD), sys.executable, "-c", "print('x' * 1_000_000); raise SystemExit(3)"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,  # read only once: a megabyte in here would block the command for ever
            stderr=log,
        )
        assert guard.stdin
        assert guard.stdout
        assert int(guard.stdout.readline()) != os.getpid()
        assert guard.wait(20) == 3
        guard.stdin.close()
        guard.stdout.close()
    assert (tmp_path / "log").stat().st_size == 1_000_001
