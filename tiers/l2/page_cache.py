"""The kernel's page cache under adapters of files: how much of our own files it holds, and dropping it."""

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

PAGE = mmap.PAGESIZE


def own_files(folder: Path, model: str) -> Iterator[Path]:
    """Files that hold objects of ours: their names carry the model's name."""
    return (path for path in folder.rglob(f"*{model}*") if path.is_file())


def drop(folder: Path, model: str) -> float | None:
    """Write our files back, take them out of the page cache, and return the share of their pages that stays.

    Anything but 0 means that loads are not cold: a file system in memory, or someone who reads along. None: no files.
    """
    files = list(own_files(folder, model))
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return resident(files)


def resident(files: list[Path]) -> float | None:
    """Share of the files' pages that are in memory."""
    held = pages = 0
    for path in files:
        vector = _pages_in_memory(path)
        held += sum(byte & 1 for byte in vector)
        pages += len(vector)
    return held / pages if pages else None


def _pages_in_memory(path: Path) -> bytes:
    size = path.stat().st_size
    if not size:
        return b""
    vector = (ctypes.c_ubyte * -(-size // PAGE))()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long]
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    try:
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), vector) != 0:
            raise OSError(ctypes.get_errno(), f"mincore of {path}")
    finally:
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
    return bytes(vector)
