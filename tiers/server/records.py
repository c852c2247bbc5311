"""What `bench server` measures and finds."""

import threading
from dataclasses import dataclass, field

ALL_RANKS = -1

OPERATIONS = ("cold_lookup", "cold_store", "store_to_visible", "warm_lookup", "warm_retrieve")


@dataclass(frozen=True)
class Sample:
    """One timed operation. `start` counts seconds from the run's begin; `rank` ALL_RANKS is the whole of a fan-out.

    `measured` is False for warm-up, for storing before a retrieve phase and for reading back after a store phase.
    """

    client: int
    sequence: int
    operation: str
    rank: int
    start: float
    seconds: float
    bytes: int
    measured: bool


@dataclass
class Findings:
    """What the checks looked at and found. Clients add to it under `lock`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    samples: list[Sample] = field(default_factory=list)
    operations: int = 0
    operation_failures: list[str] = field(default_factory=list)
    cold_lookups: int = 0
    cold_hits: list[str] = field(default_factory=list)
    warm_lookups: int = 0
    warm_misses: list[str] = field(default_factory=list)
    sequences: int = 0
    """Measured sequences that were begun."""
    verified: int = 0
    """Sequences whose every block of every rank was compared, warm-up included."""
    right: int = 0
    """Measured ones among them that were as stored,"""
    wrong: int = 0
    """and that were not."""
    unread: int = 0
    """Sequences of a store phase that nobody read back."""
    mismatches: list[str] = field(default_factory=list)
    """One per sequence with wrong bytes."""
    server_checksums: int = 0
    server_mismatches: list[str] = field(default_factory=list)
    checksums_reason: str | None = None
    """Why the server's own checksums were not compared; None: they were."""
    timeouts: list[str] = field(default_factory=list)
    interrupted: bool = False
