"""stdout and stderr of a command, which may be closed, go away, or lie on a disk that is full.

A reader that has gone (`hitlab run | head`) has seen what it wanted: nothing of a run changes. What a full disk does not
take is lost, and the exit code says so; the run itself goes on to its end.
"""

import errno
import io
import os
import sys
from typing import TextIO

GONE = {errno.EPIPE, errno.ECONNRESET, errno.EBADF}
"""Also a terminal that was closed (EIO) has no reader any more."""


class _Stream(io.FileIO):
    """A file descriptor that takes everything. `error` is what it did not pass on, when somebody still waited for it."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.error: OSError | None = None

    def write(self, content: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        try:
            written = super().write(content)
        except OSError as error:
            if error.errno not in GONE and not (error.errno == errno.EIO and self.isatty()):
                self.error = self.error or error
            return len(content)
        return len(content) if written is None else written  # None: a descriptor that does not block is full


def outlast_readers() -> None:
    """Make stdout and stderr outlast whoever reads them. To be called before anything is opened.

    A descriptor that is closed is opened on nothing, or the next file to be opened would be taken for stdout.
    """
    for descriptor, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free, which is this one
            setattr(sys, name, open(descriptor, "r" if descriptor == 0 else "w", closefd=False))  # noqa: SIM115
        if descriptor and _is_plain(getattr(sys, name), descriptor):
            setattr(sys, name, outlasting(getattr(sys, name), descriptor))


def _is_plain(stream: TextIO | None, descriptor: int) -> bool:
    """Whether it is the process's own: not what a test, say, has put in its place."""
    if not isinstance(stream, io.TextIOWrapper) or _below(stream) is not None:
        return False
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError):
        return False


def outlasting(stream: io.TextIOWrapper, descriptor: int) -> io.TextIOWrapper:
    """What is written to `descriptor` as `stream` writes it, and never fails."""
    stream.flush()
    raw: io.RawIOBase = _Stream(descriptor)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",  # whatever the locale's encoding cannot write
        line_buffering=descriptor == 2 or stream.line_buffering,
    )


def _below(stream: object) -> _Stream | None:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, _Stream) else None


def lost() -> tuple[str, OSError] | None:
    """Which stream has lost something that somebody waited for, and why; None when all is written."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        below = _below(stream)
        if below is None:
            continue
        stream.flush()
        if below.error is not None:
            return name, below.error
    return None
