"""The process that HitLab starts, watches and ends; here a program of a few lines stands in for AISBench's."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contract.errors import DriverError
from contract.redaction import Redactor
from runner.drivers.aisbench.process import AisbenchProcess

READY = '{"protocol": 1, "work_dir": "w"}'
START = f"""
import os, subprocess, sys, time
job, descriptor = sys.argv[1], int(sys.argv[2])
print("a line with s3cret-key", flush=True)
os.write(descriptor, {READY!r}.encode())
os.close(descriptor)
folder = sys.stdin.readline().strip()
print("results go to", folder, flush=True)
"""
IDLE = "while True: time.sleep(1)\n"


@contextmanager
def started(tmp_path: Path, program: str) -> Iterator[tuple[AisbenchProcess, list[str]]]:
    package = tmp_path / "hitlab_aisbench"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(program)
    said: list[str] = []
    with AisbenchProcess(
        Path(sys.executable),
        {"a": 1},
        scratch=tmp_path,
        records=tmp_path,
        log=tmp_path / "aisbench.log",
        api_key="s3cret-key",
        redact=Redactor("s3cret-key"),
        say=said.append,
    ) as process:
        yield process, said


def _ended(process: AisbenchProcess) -> int:
    deadline = time.monotonic() + 10
    while (code := process.exit_code()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return code


def _lives(pid: int) -> bool:
    """A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_held_until_told(tmp_path: Path) -> None:
    with started(tmp_path, START) as (process, said):
        assert process.ready(threading.Event()) == json.loads(READY)
        assert process.exit_code() is None
        process.go(tmp_path / "a b")
        assert _ended(process) == 0
        assert process.last_words() == f"results go to {tmp_path}/a b"
    assert "".join(said) == f"a line with ***\nresults go to {tmp_path}/a b\n"
    assert (tmp_path / "aisbench.log").read_text() == "".join(said)


def test_leaving_the_block_ends_all_of_it(tmp_path: Path) -> None:
    program = START + "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    program += "print(child.pid, flush=True)\n" + IDLE
    with started(tmp_path, program) as (process, said):
        process.ready(threading.Event())
        process.go(tmp_path)
        while not (pids := [text for text in said if text.strip().isdigit()]):
            time.sleep(0.01)
        begun = time.monotonic()
    assert time.monotonic() - begun < 3
    assert process.exit_code() == -signal.SIGTERM
    assert not _lives(int(pids[0]))


def test_what_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.drivers.aisbench.process.TERM_SECONDS", 0.3)
    program = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + START + IDLE
    with started(tmp_path, program) as (process, _):
        process.ready(threading.Event())
    assert process.exit_code() == -signal.SIGKILL


def test_a_stop_ends_the_wait(tmp_path: Path) -> None:
    with started(tmp_path, "import time\n" + IDLE) as (process, _):
        stop = threading.Event()
        stop.set()
        assert process.ready(stop) is None


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            "raise ModuleNotFoundError('no ais_bench here')",
            "cannot start: ModuleNotFoundError: no ais_bench here",
        ),
        (
            'import os, sys; os.write(int(sys.argv[2]), b\'{"error": "bad template"}\')',
            "config: bad template",
        ),
        ("import os, sys; os.write(int(sys.argv[2]), b'{\"protocol\": 99}')", "another release"),
        ("import os, sys; os.write(int(sys.argv[2]), b'{half')", "cannot start: it said nothing"),
    ],
)
def test_what_is_wrong_shows_before_anything_is_sent(tmp_path: Path, program: str, message: str) -> None:
    with started(tmp_path, program) as (process, _), pytest.raises(DriverError, match=message):
        process.ready(threading.Event())


def test_telling_a_dead_process_is_no_fault(tmp_path: Path) -> None:
    with started(tmp_path, START) as (process, _):
        process.ready(threading.Event())
        os.kill(process._process.pid, signal.SIGKILL)
        _ended(process)
        process.go(tmp_path)
        assert process.exit_code() == -signal.SIGKILL


def test_progress_bars_are_shown_and_not_kept(tmp_path: Path) -> None:
    program = "import sys; sys.stdout.write('1/3\\r2/3\\r3/3\\nend'); sys.stdout.flush()"
    with started(tmp_path, program) as (process, said):
        _ended(process)
        process.last_words()
    assert "".join(said) == "1/3\r2/3\r3/3\nend\n"
    assert (tmp_path / "aisbench.log").read_text() == "3/3\nend\n"


def test_what_it_prints_does_nothing_to_a_terminal(tmp_path: Path) -> None:
    """Colours and the moves of progress bars go, whatever else does not print is shown as its escape."""
    text = "\\x1b[31mred\\x1b[0m \\x1b[1A\\x1b]0;owned\\x07 \\u202eevil \\x9b2J s3cret-key"
    program = START.replace("a line with s3cret-key", text)
    with started(tmp_path, program + f'print("{text}\\r", end="", flush=True)\n') as (process, said):
        process.ready(threading.Event())
        process.go(tmp_path)
        _ended(process)
        words = process.last_words()
    shown = r"red \x1b]0;owned\x07 \u202eevil \x9b2J ***"
    assert said[0] == f"{shown}\n"
    assert said[-1] in (f"{shown}\r", f"{shown}\n")
    assert words.isprintable()
    log = (tmp_path / "aisbench.log").read_text()
    assert log.splitlines()[0] == shown
    assert all(character.isprintable() for character in log if character != "\n")
