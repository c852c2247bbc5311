"""Servers that are wrong on purpose, around a real one. The bench has to call each of them wrong."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from tiers.interfaces import Bytes, CacheClient, Request
from tiers.payload import POISON

FAULTS = {
    "no-op retrieve": "retrieves nothing and says it did",
    "swapped ranks": "gives every rank the bytes of its neighbour",
    "stale data": "gives the bytes of the sequence before",
    "truncation": "leaves the end of the last block out",
    "reordered blocks": "retrieves the blocks in the wrong order",
    "lying server": "stores nothing and says it did",
}


class FaultyClient:
    """`inner` with one of FAULTS."""

    def __init__(self, inner: CacheClient, fault: str) -> None:
        if fault not in FAULTS:
            raise ValueError(f"no such fault: {fault}")
        self.chunk_size = inner.chunk_size
        self.ranks = inner.ranks
        self.layer_bytes = inner.layer_bytes
        self._inner = inner
        self._fault = fault
        self._lock = threading.Lock()
        self._stored: dict[tuple[tuple[int, ...], int], list[Bytes]] = {}
        """Tokens and rank -> the bytes of every layer, in the order of storing."""

    def lookup(self, request: Request, timeout: float) -> int:
        return self._inner.lookup(request, timeout)

    def release(self, request: Request, timeout: float) -> None:
        self._inner.release(request, timeout)

    def end_session(self, request_id: str, timeout: float) -> None:
        self._inner.end_session(request_id, timeout)

    def store(self, rank: int, request: Request, blocks: Sequence[int], timeout: float) -> bool:
        content = [self._inner.read(rank, layer, blocks) for layer in range(len(self.layer_bytes))]
        with self._lock:
            self._stored[request.tokens, rank] = content
        return True if self._fault == "lying server" else self._inner.store(rank, request, blocks, timeout)

    def retrieve(self, rank: int, request: Request, blocks: Sequence[int], timeout: float) -> bool:
        if self._fault == "no-op retrieve":
            return True
        if self._fault == "reordered blocks":
            return self._inner.retrieve(rank, request, [*blocks[1:], blocks[0]], timeout)
        done = self._inner.retrieve(rank, request, blocks, timeout)
        if self._fault == "truncation":
            last = len(self.layer_bytes) - 1
            content = self._inner.read(rank, last, blocks[-1:]).copy()
            content[:, -16:] = POISON
            self._inner.write(rank, last, blocks[-1:], content)
        elif (other := self._other(rank, request)) is not None:
            for layer, data in enumerate(other):
                self._inner.write(rank, layer, blocks, data)
        return done

    def _other(self, rank: int, request: Request) -> list[Bytes] | None:
        with self._lock:
            if self._fault == "swapped ranks":
                return self._stored.get((request.tokens, (rank + 1) % self.ranks))
            if self._fault == "stale data":
                earlier = [tokens for tokens, of in self._stored if of == rank and tokens != request.tokens]
                return self._stored[earlier[-1], rank] if earlier else None
        return None

    def write(self, rank: int, layer: int, blocks: Sequence[int], data: Bytes) -> None:
        self._inner.write(rank, layer, blocks, np.ascontiguousarray(data))

    def read(self, rank: int, layer: int, blocks: Sequence[int]) -> Bytes:
        return self._inner.read(rank, layer, blocks)

    def copy(self, rank: int, source: Sequence[int], destination: Sequence[int]) -> None:
        self._inner.copy(rank, source, destination)

    def object_names(self, tokens: tuple[int, ...]) -> list[dict[str, Any]]:
        return self._inner.object_names(tokens)

    def close(self) -> None:
        self._inner.close()
