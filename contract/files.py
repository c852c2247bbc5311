"""Reading files that somebody else names: regular ones alone.

A pipe waits for a writer and a device may have no end, so neither is opened for reading anywhere in HitLab. Every
function here raises OSError with a `strerror` that fits behind "cannot be read".
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MIB = 1 << 20


def open_file(path: Path) -> BinaryIO:
    """The regular file `path`, symbolic links followed, open for reading bytes. Never waits."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL, or characters that no file name can hold
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is no regular file but a pipe or a device", str(path))


def regular(path: Path) -> Path:
    """`path` itself, for a library that opens it by its name; OSError when it is no regular file."""
    open_file(path).close()
    return path


def read_file(path: Path, *, at_most: int | None = None) -> bytes:
    """The bytes of a regular file, and no more than `at_most` of them: a larger file is an OSError."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if at_most is not None and size > at_most:
            raise OSError(errno.EFBIG, f"it is larger than {at_most // MIB} MiB", str(path))
        return file.read()


def read_text(path: Path, *, encoding: str = "utf-8") -> str:
    """The text of a regular file. Also raises UnicodeDecodeError."""
    return read_file(path).decode(encoding)


def expanded(path: str) -> Path:
    """`path` with a leading `~` or `~user` replaced; as it is where there is no such user (pathlib would raise)."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def exists(path: Path) -> bool:
    """Whether anything is there; nothing is where the name is too long or the folder cannot be entered."""
    return os.path.exists(path)  # noqa: PTH110 - pathlib raises for such names
