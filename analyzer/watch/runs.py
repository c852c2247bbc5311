"""Which measurements lie under a folder of artifacts, and what their runs have said so far."""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from contract.events import has_writer
from contract.files import open_file
from contract.foreign_text import presentable
from contract.run_directory import MANIFEST_SUFFIX, STAMP_LENGTH, MeasurementDirectory, RunDirectory

LOGGER = logging.getLogger("hitlab.watch")

DEPTH = 4
"""How deep run directories may lie under the artifacts; output_dir may have folders of its own."""

READ_BYTES = 1 << 20
LONGEST_LINE = 1 << 20
"""Bytes of one event. A longer line is none, and is passed over."""

SILENCE_SECONDS = 10.0
"""A run that has not written for so long is asked whether it is still there. Not earlier: asking takes a lock for a
moment, which a run that is just opening its log must not meet."""


@dataclass(frozen=True)
class FoundMeasurement:
    """`result/runs/<stamp>/` of a run directory whose manifest is there. Equal ones are the same on disk."""

    run: RunDirectory
    measurement: MeasurementDirectory

    @property
    def identity(self) -> tuple[str, str]:
        return self.run.run_id, self.measurement.stamp


def find_measurements(artifacts: Path) -> list[FoundMeasurement]:
    """All measurements that a run has made, newest first. Symbolic links are not followed, hidden folders not entered.

    Entries under `runs/` without events (an offline pair of scrapes) are no runs. Of a run directory that was copied one
    is taken: the one that is named as runs name them, else the first.
    """
    found = [
        FoundMeasurement(run, MeasurementDirectory(run.runs / name))
        for run in _run_directories(artifacts, DEPTH)
        for name in _folders(run.runs)
        if (run.runs / name / "events.jsonl").is_file()
    ]
    found.sort(key=lambda item: not item.run.root.name.endswith(item.run.run_id[-STAMP_LENGTH:]))
    once = {item.identity: item for item in reversed(found)}
    return sorted(once.values(), key=lambda item: (item.measurement.stamp, item.run.run_id), reverse=True)


def _run_directories(folder: Path, depth: int) -> Iterator[RunDirectory]:
    names = _folders(folder)
    if "result" in names:
        for manifest in sorted((folder / "result").glob(f"*{MANIFEST_SUFFIX}")):
            yield RunDirectory(folder, manifest.name.removesuffix(MANIFEST_SUFFIX))
            return
    if depth:
        for name in names:
            yield from _run_directories(folder / name, depth - 1)


def _folders(folder: Path) -> list[str]:
    """Names of real folders in it; none when it is not there (any more)."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
            )
    except OSError:
        return []


class RunEvents:
    """The events of one measurement, read on from where the last reading ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._tail = b""
        self._too_long = False
        self._gone = False
        self.events: list[dict[str, Any]] = []

    def read(self, now: float) -> bool:
        """Take in what is new; returns whether anything is. A line that is still being written waits for its end.

        Every byte is read once, and what is kept of an unfinished line has an end as well.

        Args:
            now: the time of day, to tell a silent run from one that has ended without a word.
        """
        fresh = False
        try:
            status = self._path.stat()
            with open_file(self._path) as file:
                file.seek(self._offset)
                while content := file.read(READ_BYTES):
                    self._offset += len(content)
                    fresh = self._take(content) or fresh
        except OSError as error:
            LOGGER.warning("%s: cannot be read (%s)", self._path, error.strerror)
            return False
        if fresh:
            self._gone = False
        elif not self.ended and now - status.st_mtime > SILENCE_SECONDS:
            self._gone = not has_writer(self._path)
            return self._gone
        return fresh

    def _take(self, content: bytes) -> bool:
        """The lines that `content` completes; returns whether there are any."""
        *lines, rest = content.split(b"\n")
        if lines:
            lines[0] = self._tail + lines[0]
            self._tail = b""
        for line in lines:
            event = None if self._too_long else _event(line)
            if event is not None:
                self.events.append(event)
            elif line or self._too_long:
                LOGGER.warning("%s: a line is no event: %s", self._path, presentable(_shown(line), 80))
            self._too_long = False
        self._tail += rest
        if len(self._tail) > LONGEST_LINE:
            self._tail, self._too_long = b"", True
        return bool(lines)

    @property
    def ended(self) -> bool:
        """Whether the run is over: it said so, or nobody writes for it any more."""
        return self._gone or any(event["event"] == "run_finished" for event in self.events)

    @property
    def last_time(self) -> float | None:
        """Of the last event, epoch seconds."""
        return event_time(self.events[-1]) if self.events else None


_TEXTS = {"phase_started": ("phase",), "phase_finished": ("phase",), "warning": ("code", "message")}
"""Kind of event -> its fields that others rely on."""


def _event(line: bytes) -> dict[str, Any] | None:
    """The event, when it has all that its kind has; a damaged line must not end a service."""
    try:
        event = orjson.loads(line)
        event_time(event)
        whole = all(isinstance(event[name], str) for name in ("event", *_TEXTS.get(event["event"], ())))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    return event if whole else None


def _shown(line: bytes) -> str:
    return line[:400].decode("utf-8", "backslashreplace")


def event_time(event: dict[str, Any]) -> float:
    """Epoch seconds."""
    return datetime.fromisoformat(event["time"]).timestamp()
