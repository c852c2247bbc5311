"""The buffer that stands for L1: one aligned piece of memory, the first half to store from, the second to load into."""

import mmap

import numpy as np

from contract.errors import ServiceError
from tiers.interfaces import Bytes

HUGE_PAGE = 2 << 20


def allocate(size: int, *, align_bytes: int = 1, hugepages: bool = False) -> Bytes:
    """`size` bytes whose address is a multiple of `align_bytes`.

    Raises ServiceError where memory or huge pages are missing.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    wanted = size + align_bytes
    if hugepages:
        flags |= 0x40000  # MAP_HUGETLB, which the module does not name
        wanted = -(-wanted // HUGE_PAGE) * HUGE_PAGE
    try:
        memory = np.frombuffer(mmap.mmap(-1, wanted, flags=flags), dtype=np.uint8)
    except (OSError, ValueError) as error:
        what = "huge pages" if hugepages else "memory"
        advice = f"sysctl vm.nr_hugepages={wanted // HUGE_PAGE}" if hugepages else "fewer or smaller objects"
        raise ServiceError(
            f"{wanted / 2**20:.0f} MiB of {what} for buffers are not there ({error}): {advice}"
        ) from error
    offset = -memory.ctypes.data % align_bytes
    return memory[offset : offset + size]
