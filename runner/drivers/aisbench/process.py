"""AISBench as a process: started early, held until the baseline is taken, watched, and never left behind."""

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from contract.errors import DriverError
from contract.foreign_text import presentable, visible
from contract.redaction import Redactor

LOGGER = logging.getLogger("hitlab.runner")

PROTOCOL = 1
"""Of `hitlab_aisbench`; another one is another release of it."""

RECORDS_VARIABLE, API_KEY_VARIABLE = "HITLAB_AISBENCH_RECORDS", "OPENAI_API_KEY"
MODULE = "hitlab_aisbench"
POLL_SECONDS = 0.1
TERM_SECONDS = 3.0
GROUP_SECONDS = 0.3
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class AisbenchProcess:
    """One run of AISBench. Leaving the block ends all its processes, whatever they are doing.

    It imports what it needs and writes its config as soon as it is started, and starts only when told: what is missing
    there shows before anything has been sent, and nothing is idle between the warmup and the load.
    """

    def __init__(
        self,
        python: Path,
        job: dict[str, Any],
        *,
        scratch: Path,
        records: Path,
        log: Path,
        api_key: str,
        redact: Redactor,
        say: Callable[[str], None],
    ) -> None:
        job_file = scratch / "job.json"
        job_file.write_text(json.dumps(job), encoding="utf-8")
        self._log = log
        self._last_line = ""
        read_end, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the interpreter that the user installed for it
                [str(python), "-m", MODULE, str(job_file), str(write_end)],
                cwd=scratch,
                env=child_environment(os.environ, records=records, scratch=scratch, api_key=api_key),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[write_end],
                start_new_session=True,
            )
        except OSError as error:
            os.close(read_end)
            raise DriverError(f"{python}: cannot be started ({error.strerror}); run make aisbench") from error
        finally:
            os.close(write_end)
        self._answer = b""
        self._answered = threading.Event()
        output = self._process.stdout
        assert output is not None  # noqa: S101 - a pipe was asked for
        self._threads = [
            threading.Thread(
                target=self._relay, args=(output, redact, say), name="aisbench-output", daemon=True
            ),
            threading.Thread(target=self._listen, args=(read_end,), name="aisbench-answer", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> "AisbenchProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def ready(self, stop: threading.Event) -> dict[str, Any] | None:
        """What it is going to do; None when `stop` was set first.

        Raises DriverError: it cannot start, the template is not usable, or the plugin is of another release.
        """
        while not self._answered.wait(POLL_SECONDS):
            if stop.is_set():
                return None
        try:
            answer: dict[str, Any] = json.loads(self._answer or b"{}")
        except json.JSONDecodeError:
            answer = {}
        if "error" in answer:
            raise DriverError(f"aisbench.config: {answer['error']}")
        if not answer:
            self._process.wait()
            raise DriverError(
                f"AISBench cannot start: {self.last_words()}; run make aisbench to build it anew"
            )
        if answer.get("protocol") != PROTOCOL:
            raise DriverError(
                "HitLab's plugin in AISBench's environment is of another release; run make aisbench"
            )
        return answer

    def go(self, folder: Path) -> None:
        """Start AISBench; its results go to `folder`. Its stdin stays open: it ends when this process does."""
        with contextlib.suppress(BrokenPipeError):  # it is dead; `exit_code` tells
            stdin = self._process.stdin
            assert stdin is not None  # noqa: S101 - a pipe was asked for
            stdin.write(f"{folder}\n".encode())
            stdin.flush()

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """End the whole process group. Python's own bookkeeper of shared memory outlives it, and cleans up."""
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(TERM_SECONDS)
        deadline = time.monotonic() + GROUP_SECONDS
        while self._group_lives() and time.monotonic() < deadline:
            self._signal(signal.SIGTERM)
            time.sleep(POLL_SECONDS / 4)
        self._signal(signal.SIGKILL)
        self._process.wait()
        for thread in self._threads:
            thread.join(TERM_SECONDS)
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def last_words(self) -> str:
        """The last line of its output."""
        self._threads[0].join(TERM_SECONDS)
        return self._last_line or f"it said nothing (log: {self._log})"

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _group_lives(self) -> bool:
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _listen(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as file:
            self._answer = file.read()
        self._answered.set()

    def _relay(self, output: IO[bytes], redact: Redactor, say: Callable[[str], None]) -> None:
        """Its output, a line at a time (progress bars end theirs with a carriage return), to the log and to `say`."""
        with self._log.open("w", encoding="utf-8") as log, output:
            rest = b""
            descriptor = output.fileno()
            while data := os.read(descriptor, 65536):
                *lines, rest = (rest + data).replace(b"\r\n", b"\n").replace(b"\r", b"\r\n").split(b"\n")
                for line in lines:
                    self._line(line, redact, say, log)
                log.flush()
            if rest:
                self._line(rest, redact, say, log)

    def _line(self, line: bytes, redact: Redactor, say: Callable[[str], None], log: IO[str]) -> None:
        text = line.decode("utf-8", "replace")
        again = text.endswith("\r")
        text = visible(redact(without_colours(text.removesuffix("\r"))))
        say(f"{text}\r" if again else f"{text}\n")
        if not again:
            log.write(f"{text}\n")
            self._last_line = presentable(text) or self._last_line


def without_colours(text: str) -> str:
    """Without what AISBench sends to a terminal: colours, and the moves of its progress bars."""
    return _COLOURS.sub("", text)


def child_environment(
    environment: "os._Environ[str] | dict[str, str]", *, records: Path, scratch: Path, api_key: str
) -> dict[str, str]:
    """What AISBench gets: the user's variables, without anything that would make it ask the network or draw screens."""
    child = {name: value for name, value in environment.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")}
    child.pop(API_KEY_VARIABLE, None)
    if api_key:
        child[API_KEY_VARIABLE] = api_key
    child[RECORDS_VARIABLE] = str(records)
    child |= {
        "TERM": "dumb",  # AISBench draws its table of tasks with curses wherever it can
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(scratch / "huggingface"),
        "MPLCONFIGDIR": str(scratch / "matplotlib"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    return child
