"""Server-sent events, read as the bytes come in."""

from typing import Final, NamedTuple

LARGEST_EVENT: Final = 16 * 2**20
"""Bytes of one event, and of one line."""
_BOM: Final = b"\xef\xbb\xbf"


class EventTooLargeError(ValueError):
    """An event of more than LARGEST_EVENT bytes. What follows it cannot be read."""


class Event(NamedTuple):
    """One event: its type ("message" unless the server names one) and its data lines joined with a newline."""

    name: bytes
    data: bytes


class SseReader:
    """Incremental reader of `text/event-stream` (WHATWG HTML, section 9.2), split anywhere.

    Comments, ids and retry times are skipped; lines end with LF, CRLF or CR. The time it takes grows with the bytes that
    come, however they are cut.
    """

    __slots__ = ("_after_cr", "_data", "_data_bytes", "_first", "_name", "_tail")

    def __init__(self) -> None:
        self._tail = bytearray()
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._name = b""
        self._after_cr = False
        self._first = True

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes, in order.

        Raises:
            EventTooLargeError: a line or an event never seems to end.
        """
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
        lines = chunk.split(b"\n")
        tail = lines.pop()
        if lines and self._tail:
            lines[0] = bytes(self._tail + lines[0])
            self._tail.clear()
        self._tail += tail
        if self._first and lines:
            self._first = False
            lines[0] = lines[0].removeprefix(_BOM)
        events: list[Event] = []
        for line in lines:
            self._line(line, events)
        if len(self._tail) + self._data_bytes > LARGEST_EVENT:
            raise EventTooLargeError(f"an event of more than {LARGEST_EVENT >> 20} MiB")
        return events

    def finish(self) -> list[Event]:
        """What is left when the stream ends without the closing blank line (the standard drops it, servers send it)."""
        events: list[Event] = []
        self._line(bytes(self._tail), events)
        self._line(b"", events)
        self._tail.clear()
        return events

    def _line(self, line: bytes, events: list[Event]) -> None:
        if not line:
            if self._data:
                events.append(Event(self._name or b"message", b"\n".join(self._data)))
            self._data, self._data_bytes, self._name = [], 0, b""
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value[1:] if value.startswith(b" ") else value)
            self._data_bytes += len(line) + 1
        elif name == b"event":
            self._name = value[1:] if value.startswith(b" ") else value
