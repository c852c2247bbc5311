"""Server-sent events, read as the bytes come in."""

from typing import Final, NamedTuple

_BOM: Final = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event: its type ("message" unless the server names one) and its data lines joined with a newline."""

    name: bytes
    data: bytes


class SseReader:
    """Incremental reader of `text/event-stream` (WHATWG HTML, section 9.2), split anywhere.

    Comments, ids and retry times are skipped; lines end with LF, CRLF or CR.
    """

    __slots__ = ("_after_cr", "_data", "_first", "_name", "_tail")

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []
        self._name = b""
        self._after_cr = False
        self._first = True

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes, in order."""
        if (
            chunk.startswith(b"data: ")
            and chunk.endswith(b"\n\n")
            and not (self._tail or self._data or self._name)
            and chunk.count(b"\n") == 2
            and b"\r" not in chunk
        ):
            # One whole event in one piece, which is what servers send: no need to go line by line.
            self._first = self._after_cr = False
            return [Event(b"message", chunk[6:-2])]
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (self._tail + chunk).split(b"\n") if self._tail else chunk.split(b"\n")
        self._tail = lines.pop()
        if self._first and lines:
            self._first = False
            lines[0] = lines[0].removeprefix(_BOM)
        events: list[Event] = []
        for line in lines:
            self._line(line, events)
        return events

    def finish(self) -> list[Event]:
        """What is left when the stream ends without the closing blank line (the standard drops it, servers send it)."""
        events: list[Event] = []
        self._line(self._tail, events)
        self._line(b"", events)
        self._tail = b""
        return events

    def _line(self, line: bytes, events: list[Event]) -> None:
        if not line:
            if self._data:
                events.append(Event(self._name or b"message", b"\n".join(self._data)))
            self._data, self._name = [], b""
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value[1:] if value.startswith(b" ") else value)
        elif name == b"event":
            self._name = value[1:] if value.startswith(b" ") else value
