"""The log file of a command: `log/<id>.<command>.log`, appended, free of secrets."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from contract.documents import unwritable, writing
from contract.errors import ArtifactError
from contract.foreign_text import visible
from contract.redaction import Redactor

LOGGER = logging.getLogger("hitlab")


SHOWN = 100
"""Lines of one kind, groups say, that a log shows; how many are left out is its next line."""


def bounded(lines: Iterable[str], where: str) -> Iterator[str]:
    """The first `SHOWN` lines; if there are more, one that says how many and `where` they are."""
    left = 0
    for number, line in enumerate(lines):
        if number < SHOWN:
            yield line
        else:
            left += 1
    if left:
        yield f"... and {left} more: {where}"


class PhaseTimes:
    """The phases of a command in its log, each with the seconds that it took.

    What ended before there was a log is written as soon as there is one: `tell`.
    """

    def __init__(self) -> None:
        self._log: logging.Logger | None = None
        self._waiting: list[str] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        line = f"phase {name}: {time.monotonic() - begun:.3f} s"
        if self._log is None:
            self._waiting.append(line)
        else:
            self._log.info("%s", line)

    def tell(self, log: logging.Logger) -> None:
        self._log = log
        while self._waiting:
            log.info("%s", self._waiting.pop(0))


def log_lines(log: logging.Logger, lines: Iterable[str]) -> None:
    """Every line as an entry of its own."""
    for line in lines:
        log.info("%s", line)


class _LogFile(logging.Handler):
    """Appends redacted lines. When the disk takes no more, says so once on stderr and lets the command go on."""

    def __init__(self, path: Path, redact: Redactor) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._path, self._redact = path, redact
        self._full = False
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)

    def emit(self, record: logging.LogRecord) -> None:
        if self._full:
            return
        try:
            self._file.write(visible(self._redact(self.format(record))).encode() + b"\n")
        except OSError as error:
            self._full = True
            print(f"WARNING: {unwritable(self._path, error)}", file=sys.stderr)

    def close(self) -> None:
        self._file.close()
        super().close()


def _log_file(path: Path, redact: Redactor, *, needed: bool) -> logging.Handler:
    try:
        return _LogFile(path, redact)
    except ArtifactError as error:
        if needed:
            raise
        why = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error
        print(f"WARNING: {visible(str(path))}: cannot be written ({why}); nothing is logged", file=sys.stderr)
        return logging.NullHandler()


@contextmanager
def command_log(path: Path, redact: Redactor, *, needed: bool = True) -> Iterator[logging.Logger]:
    """Everything that HitLab logs inside the block goes to `path`; an exception that passes, too.

    Raises ArtifactError when it cannot be written; where it is not `needed`, because the command writes nothing else,
    that is a warning.
    """
    handler = _log_file(path, redact, needed=needed)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    LOGGER.addHandler(handler)
    try:
        yield LOGGER
    except BaseException:
        LOGGER.exception("ended by an exception")
        raise
    finally:
        LOGGER.removeHandler(handler)
        handler.close()
