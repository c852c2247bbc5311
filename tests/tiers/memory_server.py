"""A cache server in memory with any number of clients, written against the interface alone."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tiers.interfaces import Bytes, Request
from tiers.server.layout import Layout

CHUNK = 32


class MemoryServer:
    """Objects by model, prompt prefix and rank. `delay` is what a store takes to become visible."""

    def __init__(self, *, delay: float = 0.0) -> None:
        self.delay = delay
        self.answers = True
        self.fails: set[str] = set()
        self.objects: dict[tuple[Any, ...], tuple[float, list[Bytes]]] = {}
        self.locks = 0
        self.sessions: set[str] = set()
        self.lock = threading.Lock()

    def client(self, layout: Layout, *, model: str, first_instance: int, ranks: int = 1) -> "MemoryClient":
        return MemoryClient(self, layout, model, ranks)


class MemoryClient:
    def __init__(self, server: MemoryServer, layout: Layout, model: str, ranks: int) -> None:
        self.chunk_size = CHUNK
        self.ranks = ranks
        self.layer_bytes = layout.layer_bytes
        self.closed = False
        self._server = server
        self._model = model
        self._shared = layout.shared_between_ranks
        self._per_chunk = CHUNK // layout.block_size
        self._tensors = [
            [np.zeros((layout.blocks, size), dtype=np.uint8) for size in layout.layer_bytes]
            for _ in range(ranks)
        ]

    def _keys(self, tokens: tuple[int, ...], rank: int) -> list[tuple[Any, ...]]:
        owner = 0 if self._shared else rank
        return [(self._model, tokens[:end], owner) for end in range(CHUNK, len(tokens) + 1, CHUNK)]

    def lookup(self, request: Request, timeout: float) -> int:
        if not self._server.answers:
            raise TimeoutError
        now = time.perf_counter()
        with self._server.lock:
            self._server.sessions.add(request.request_id)
            found = 0
            for keys in zip(*(self._keys(request.tokens, rank) for rank in range(self.ranks)), strict=True):
                if not all(
                    key in self._server.objects and self._server.objects[key][0] <= now for key in keys
                ):
                    break
                found += 1
            self._server.locks += found > 0
        return found

    def release(self, request: Request, timeout: float) -> None:
        self._server.locks -= 1

    def end_session(self, request_id: str, timeout: float) -> None:
        if not self._server.answers:
            raise TimeoutError
        self._server.sessions.discard(request_id)

    def store(self, rank: int, request: Request, blocks: Sequence[int], timeout: float) -> bool:
        if "store" in self._server.fails:
            return False
        visible = time.perf_counter() + self._server.delay
        with self._server.lock:
            for number, key in enumerate(self._keys(request.tokens, rank)):
                part = list(blocks[number * self._per_chunk : (number + 1) * self._per_chunk])
                self._server.objects[key] = (visible, [layer[part].copy() for layer in self._tensors[rank]])
        return True

    def retrieve(self, rank: int, request: Request, blocks: Sequence[int], timeout: float) -> bool:
        with self._server.lock:
            if rank == 0:
                self._server.locks -= 1
            if "retrieve" in self._server.fails:
                return False
            for number, key in enumerate(self._keys(request.tokens, rank)):
                part = list(blocks[number * self._per_chunk : (number + 1) * self._per_chunk])
                for layer, data in zip(self._tensors[rank], self._server.objects[key][1], strict=True):
                    layer[part] = data
        return True

    def write(self, rank: int, layer: int, blocks: Sequence[int], data: Bytes) -> None:
        self._tensors[rank][layer][list(blocks)] = data

    def read(self, rank: int, layer: int, blocks: Sequence[int]) -> Bytes:
        return self._tensors[rank][layer][list(blocks)]

    def copy(self, rank: int, source: Sequence[int], destination: Sequence[int]) -> None:
        for layer in self._tensors[rank]:
            layer[list(destination)] = layer[list(source)]

    def object_names(self, tokens: tuple[int, ...]) -> list[dict[str, Any]]:
        return [{"object_group_id": 0, "name": str(key)} for key in self._keys(tokens, 0)]

    def close(self) -> None:
        self.closed = True
