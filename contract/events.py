"""`events.jsonl`: what a run did and when, one line per event, for whoever follows it live."""

import fcntl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import orjson

from contract.documents import writing
from contract.files import open_file
from contract.foreign_text import printable_json
from contract.redaction import Redactor

OUR_WORDS = ("phase", "status", "code")
"""Fields whose values are words of HitLab's own, whatever the key is."""
EventKind = Literal["run_started", "phase_started", "phase_finished", "warning", "run_finished"]


class EventLog:
    """Appends events. Each line is written whole and at once, so that a reader sees whole lines.

    The file is locked while it is open: whoever finds it unlocked knows that its writer has ended, in whatever way.
    """

    def __init__(self, path: Path, redact: Redactor) -> None:
        self._path = path
        self._redact = redact
        with writing(path):
            self._file = path.open("ab", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, kind: EventKind, **fields: Any) -> None:
        """`time` (ISO 8601, UTC) and `event`, then `fields`."""
        told = {
            name: value if name in OUR_WORDS else self._redact.document(value)
            for name, value in fields.items()
        }
        line = orjson.dumps({"time": utc_now(), "event": kind, **told}).decode()
        with writing(self._path):
            self._file.write(printable_json(line).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def has_writer(path: Path) -> bool:
    """Whether the run that writes these events is still there."""
    with open_file(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
