"""Server-sent events, read as the bytes come in."""

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event: its type ("message" unless the server names one) and its data lines joined with a newline."""

    name: bytes
    data: bytes


class SseReader:
    """Incremental reader of `text/event-stream` (WHATWG HTML, section 9.2), split anywhere.

    Comments, ids and retry times are skipped; lines end with LF, CRLF or CR.
    """

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []
        self._name = b""
        self._after_cr = False
        self._first = True

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes, in order."""
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (self._tail + chunk).split(b"\n")
        self._tail = lines.pop()
        if self._first and lines:
            self._first = False
            lines[0] = lines[0].removeprefix(_BOM)
        return [event for line in lines for event in self._line(line)]

    def finish(self) -> list[Event]:
        """What is left when the stream ends without the closing blank line (the standard drops it, servers send it)."""
        events = [*self._line(self._tail), *self._line(b"")]
        self._tail = b""
        return events

    def _line(self, line: bytes) -> list[Event]:
        if not line:
            events = [Event(self._name or b"message", b"\n".join(self._data))] if self._data else []
            self._data, self._name = [], b""
            return events
        name, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value
        return []
