"""Bytes that cannot be right by accident: seeded, incompressible, different at every position."""

import hashlib

import numpy as np

from tiers.interfaces import Bytes

POISON = 0xDB
"""What a destination holds before it is read into. No payload looks like a run of it."""


def payload(*identity: int | str, size: int) -> Bytes:
    """`size` bytes that follow from `identity` alone.

    The raw stream of the counter-based generator Philox, keyed by the identity's hash: NumPy guarantees raw streams
    (not distributions) from version to version.
    """
    key = int.from_bytes(hashlib.blake2b(repr(identity).encode(), digest_size=16).digest(), "little")
    words = np.random.Philox(key=key).random_raw(-(-size // 8))
    return np.asarray(words, dtype="<u8").view(np.uint8)[:size]


def difference(found: Bytes, expected: Bytes) -> str | None:
    """None when equal, else where two byte sequences first differ and how."""
    if np.array_equal(found, expected):
        return None
    differs = np.flatnonzero(found != expected)
    first = int(differs[0])
    state = "still poisoned" if bool((found[differs] == POISON).all()) else f"found 0x{int(found[first]):02x}"
    return f"{differs.size} of {expected.size} bytes differ, the first at offset {first} ({state})"
