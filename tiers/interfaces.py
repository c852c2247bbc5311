"""What the benches ask of LMCache, in our own words.

`lmcache_api` answers with the real package, `l2.faults` and `server.faults` with one that is wrong on purpose, and
tests with one in memory. Sizes are bytes, times seconds, buffers flat `uint8` arrays.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Operation(StrEnum):
    STORE = "store"
    LOOKUP = "lookup"
    LOAD = "load"


@dataclass(frozen=True)
class ObjectName:
    """Name of one stored object: the hash of a chunk under a model name."""

    model: str
    chunk_hash: bytes


@dataclass(frozen=True)
class Batch:
    """The objects of one task, made ready before the clock starts.

    `buffers` has one array per name; None for a lookup. `native` is whatever the adapter made of them.
    """

    names: tuple[ObjectName, ...]
    buffers: tuple[Bytes, ...] | None = None
    native: Any = field(default=None, compare=False)


@dataclass(frozen=True)
class TaskResult:
    """How a task ended.

    `found` tells per object whether it was stored, found or loaded. `moved_bytes` is what a store says it wrote; None
    where the adapter says nothing about it.
    """

    found: tuple[bool, ...]
    moved_bytes: int | None = None


Task = tuple[Operation, int]


class L2Backend(Protocol):
    """One L2 adapter. Tasks are submitted, then waited for."""

    name: str

    def prepare(self, names: Sequence[ObjectName], buffers: Sequence[Bytes] | None) -> Batch: ...

    def submit(self, operation: Operation, batch: Batch) -> Task: ...

    def wait(self, pending: Collection[Task], timeout: float) -> dict[Task, TaskResult]:
        """The tasks among `pending` that ended, as soon as one has; empty after `timeout` seconds."""
        ...

    def unlock(self, names: Sequence[ObjectName]) -> None:
        """Release the locks that a lookup took on what it found."""
        ...

    def delete(self, names: Sequence[ObjectName]) -> None:
        """Remove objects. An adapter that cannot does nothing: look afterwards."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Request:
    """One prompt as the server sees it: whole chunks of token ids under the id of a session."""

    request_id: str
    tokens: tuple[int, ...]


class CacheClient(Protocol):
    """One simulated vLLM instance: a scheduler that looks up, and `ranks` workers with KV tensors that are registered.

    `layer_bytes` gives the bytes of one block of each layer.
    """

    chunk_size: int
    ranks: int
    layer_bytes: tuple[int, ...]

    def lookup(self, request: Request, timeout: float) -> int:
        """Chunks found from the start of the prompt. Raises TimeoutError."""
        ...

    def release(self, request: Request, timeout: float) -> None:
        """Give back the read locks of a lookup that nothing was retrieved after. Raises TimeoutError."""
        ...

    def end_session(self, request_id: str, timeout: float) -> None:
        """The request is over. Raises TimeoutError."""
        ...

    def store(self, rank: int, request: Request, blocks: Sequence[int], timeout: float) -> bool: ...

    def retrieve(self, rank: int, request: Request, blocks: Sequence[int], timeout: float) -> bool: ...

    def write(self, rank: int, layer: int, blocks: Sequence[int], data: Bytes) -> None:
        """Fill blocks of a layer; `data` has the shape (blocks, layer_bytes[layer])."""
        ...

    def read(self, rank: int, layer: int, blocks: Sequence[int]) -> Bytes:
        """The bytes of blocks of a layer, in the shape that `write` takes."""
        ...

    def copy(self, rank: int, source: Sequence[int], destination: Sequence[int]) -> None:
        """Copy blocks within a rank's tensors: what memory alone can do with the same buffers."""
        ...

    def object_names(self, tokens: tuple[int, ...]) -> list[dict[str, Any]]:
        """The names of a prompt's objects in the form that the server's HTTP API takes."""
        ...

    def close(self) -> None: ...
