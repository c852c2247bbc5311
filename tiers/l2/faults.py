"""Adapters that are wrong on purpose, around a real one. The bench has to call each of them wrong."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from tiers.interfaces import Batch, Bytes, L2Backend, ObjectName, Operation, Task, TaskResult
from tiers.payload import POISON

FAULTS = {
    "no-op load": "loads nothing and says it did",
    "swapped objects": "loads each object into its neighbour's buffer",
    "stale data": "gives what the load before gave",
    "truncation": "loads all but the last quarter of each object",
    "lying store": "stores nothing and says it did",
    "lying adapter": "does nothing at all, finds everything and says that all went well",
    "hidden misses": "loads half of the objects, and says which",
}


class FaultyBackend:
    """`inner` with one of FAULTS."""

    def __init__(self, inner: L2Backend, fault: str) -> None:
        if fault not in FAULTS:
            raise ValueError(f"no such fault: {fault}")
        self.name = inner.name
        self._inner = inner
        self._fault = fault
        self._running: dict[Task, Batch] = {}
        self._before: list[Bytes] = []
        self._invented: dict[Task, int] = {}

    def prepare(self, names: Sequence[ObjectName], buffers: Sequence[Bytes] | None) -> Batch:
        return self._inner.prepare(names, buffers)

    def submit(self, operation: Operation, batch: Batch) -> Task:
        does_nothing = self._fault == "lying adapter" or (
            operation is Operation.STORE and self._fault == "lying store"
        )
        if does_nothing and not (operation is Operation.LOOKUP and not self._invented):
            # Something has to end: a lookup does, and its result is thrown away.
            task = self._inner.submit(Operation.LOOKUP, self._inner.prepare(batch.names, None))
            self._invented[task] = len(batch.names)
            return task
        if operation is not Operation.LOAD or batch.buffers is None:
            return self._inner.submit(operation, batch)
        buffers = list(batch.buffers)
        if self._fault == "no-op load":
            buffers = [np.empty_like(buffer) for buffer in buffers]
        elif self._fault == "swapped objects":
            buffers = buffers[1:] + buffers[:1]
        task = self._inner.submit(operation, self._inner.prepare(batch.names, buffers))
        # Buffers have to live as long as the task.
        self._running[task] = replace(batch, native=buffers)
        return task

    def wait(self, pending: Collection[Task], timeout: float) -> dict[Task, TaskResult]:
        ended = self._inner.wait(pending, timeout)
        return {task: self._spoil(task, result) for task, result in ended.items()}

    def _spoil(self, task: Task, result: TaskResult) -> TaskResult:
        if task in self._invented:
            return TaskResult((True,) * self._invented[task], 0)
        batch = self._running.pop(task, None)
        if batch is None or batch.buffers is None:
            return result
        if self._fault == "stale data":
            loaded = [buffer.copy() for buffer in batch.buffers]
            for buffer, stale in zip(batch.buffers, self._before, strict=False):
                buffer[:] = stale
            self._before = loaded
        elif self._fault == "truncation":
            for buffer in batch.buffers:
                buffer[-(len(buffer) // 4) :] = POISON
        elif self._fault == "hidden misses":
            return TaskResult(tuple(there and index % 2 == 0 for index, there in enumerate(result.found)))
        return result

    def unlock(self, names: Sequence[ObjectName]) -> None:
        # What was only said to be found is not locked.
        if self._fault != "lying adapter":
            self._inner.unlock(names)

    def delete(self, names: Sequence[ObjectName]) -> None:
        self._inner.delete(names)

    def close(self) -> None:
        self._inner.close()
