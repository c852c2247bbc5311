"""`events.jsonl`: what a run did and when, one line per event, for whoever follows it live."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import orjson

from contract.redaction import Redactor

EventKind = Literal["run_started", "phase_started", "phase_finished", "warning", "run_finished"]


class EventLog:
    """Appends events. Each line is written whole and at once, so that a reader sees whole lines."""

    def __init__(self, path: Path, redact: Redactor) -> None:
        self._file = path.open("ab", buffering=0)
        self._redact = redact

    def write(self, kind: EventKind, **fields: Any) -> None:
        """`time` (ISO 8601, UTC) and `event`, then `fields`."""
        line = orjson.dumps({"time": utc_now(), "event": kind, **fields}).decode()
        self._file.write(self._redact(line).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
