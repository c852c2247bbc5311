"""Server-sent events, read as the bytes come in."""

from typing import NamedTuple

LARGEST_EVENT = 16 * 2**20
"""Bytes of one event, and of one line."""
_BOM = b"\xef\xbb\xbf"


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
        events = [event for line in lines for event in self._line(line)]
        if len(self._tail) + self._data_bytes > LARGEST_EVENT:
            raise EventTooLargeError(f"an event of more than {LARGEST_EVENT >> 20} MiB")
        return events

    def finish(self) -> list[Event]:
        """What is left when the stream ends without the closing blank line (the standard drops it, servers send it)."""
        events = [*self._line(bytes(self._tail)), *self._line(b"")]
        self._tail.clear()
        return events

    def _line(self, line: bytes) -> list[Event]:
        if not line:
            events = [Event(self._name or b"message", b"\n".join(self._data))] if self._data else []
            self._data, self._data_bytes, self._name = [], 0, b""
            return events
        name, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(line) + 1
        elif name == b"event":
            self._name = value
        return []
