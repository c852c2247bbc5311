"""The attempts that AISBench's processes write down, read while they are written."""

import fcntl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from contract.errors import DriverError
from contract.foreign import token_count
from contract.foreign_text import presentable
from contract.records import ErrorKind, RequestRecord
from contract.redaction import Redactor

_FIELDS = RequestRecord._fields
_TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens", "image_tokens")


@dataclass(frozen=True)
class Span:
    """When an attempt was under way, in nanoseconds of one clock for all processes. `first`: of its request."""

    start_ns: int
    end_ns: int
    first: bool = True


@dataclass
class _File:
    path: Path
    offset: int = 0
    tail: bytes = b""
    closed: bool = False
    error: str | None = None
    open: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)


class AttemptReader:
    """Reads the files of one load as they grow. `closed` processes have said that they are done, some with an error.

    What servers said in them passes `redact`, and is made presentable.
    """

    def __init__(self, folder: Path, redact: Redactor | None = None) -> None:
        self._folder = folder
        self._redact = redact or Redactor()
        self._files: dict[Path, _File] = {}
        self.spans: list[Span] = []

    def read(self) -> Iterator[RequestRecord]:
        """The attempts that have ended since the last call."""
        for path in sorted(self._folder.glob("attempts.*.jsonl")):
            yield from self._read(self._files.setdefault(path, _File(path)))

    def _read(self, file: _File) -> Iterator[RequestRecord]:
        with file.path.open("rb") as source:
            source.seek(file.offset)
            data = source.read()
        file.offset += len(data)
        *lines, file.tail = (file.tail + data).split(b"\n")
        for line in lines:
            try:
                event = orjson.loads(line)
                kind = event["event"]
                if kind == "closed":
                    file.closed, file.error = True, self._presentable(event["error"])
                elif kind == "begin":
                    file.open[event["position"], event["attempt"]] = event
                else:
                    del file.open[event["position"], event["attempt"]]
                    self.spans.append(Span(event["started_ns"], event["ended_ns"], event["attempt"] == 1))
                    yield self._record(event)
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise DriverError(
                    f"{file.path}: not what HitLab's AISBench plugin writes: {error!r}"
                ) from error

    @property
    def errors(self) -> list[str]:
        """Why processes ended early, as they said it."""
        return [file.error for file in self._files.values() if file.error is not None]

    def dead(self) -> bool:
        """Whether a process ended without a word: it holds its file locked as long as it lives."""
        return any(not file.closed and not _locked(file.path) for file in self._files.values())

    def unfinished(self, kind: ErrorKind, text: str, now_ns: int) -> Iterator[RequestRecord]:
        """The attempts that began and never ended, because the process did."""
        for file in self._files.values():
            for event in file.open.values():
                self.spans.append(Span(event["started_ns"], now_ns, event["attempt"] == 1))
                nothing = dict.fromkeys(_FIELDS) | {"itl_s": [], "chunks": 0}
                yield self._record({**nothing, **event, "error_kind": kind, "error_text": text})
            file.open.clear()

    def _record(self, event: dict[str, Any]) -> RequestRecord:
        values = {name: event[name] for name in _FIELDS}
        told = {name: self._presentable(values[name]) for name in ("error_text", "finish_reason")}
        counts = {name: token_count(values[name]) for name in _TOKENS}
        return RequestRecord(**{**values, **told, **counts, "itl_s": tuple(values["itl_s"])})

    def _presentable(self, text: str | None) -> str | None:
        return None if text is None else presentable(self._redact(text))


def _locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
