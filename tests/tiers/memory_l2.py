"""An L2 adapter in memory, written against the interface alone: the tests' own idea of a right one."""

from collections.abc import Collection, Sequence

from tiers.interfaces import Batch, Bytes, ObjectName, Operation, Task, TaskResult


class MemoryL2:
    """Tasks end when they are waited for. The switches make it wrong in ways that real adapters are."""

    name = "MemoryL2"

    def __init__(self) -> None:
        self.objects: dict[ObjectName, bytes] = {}
        self.locks: dict[ObjectName, int] = {}
        self.deletes = True
        self.skips_what_it_has = True
        self.reports_bytes = True
        self.fails_stores = False
        self.answers = True
        self.closed = 0
        self._number = 0
        self._running: dict[Task, Batch] = {}

    def prepare(self, names: Sequence[ObjectName], buffers: Sequence[Bytes] | None) -> Batch:
        return Batch(tuple(names), None if buffers is None else tuple(buffers))

    def submit(self, operation: Operation, batch: Batch) -> Task:
        self._number += 1
        task = (operation, self._number)
        self._running[task] = batch
        return task

    def wait(self, pending: Collection[Task], timeout: float) -> dict[Task, TaskResult]:
        if not self.answers:
            return {}
        return {task: self._end(task[0], self._running.pop(task)) for task in pending}

    def _end(self, operation: Operation, batch: Batch) -> TaskResult:
        if operation is Operation.STORE:
            return self._store(batch)
        found = tuple(name in self.objects for name in batch.names)
        for name, there, buffer in zip(batch.names, found, batch.buffers or [None] * len(found), strict=True):
            if there and operation is Operation.LOOKUP:
                self.locks[name] = self.locks.get(name, 0) + 1
            if there and buffer is not None:
                buffer[:] = memoryview(self.objects[name])
        return TaskResult(found)

    def _store(self, batch: Batch) -> TaskResult:
        assert batch.buffers is not None
        if self.fails_stores:
            return TaskResult((False,) * len(batch.names), 0)
        moved = 0
        for name, buffer in zip(batch.names, batch.buffers, strict=True):
            if name in self.objects and self.skips_what_it_has:
                continue
            self.objects[name] = buffer.tobytes()
            moved += len(buffer)
        return TaskResult((True,) * len(batch.names), moved if self.reports_bytes else 0)

    def unlock(self, names: Sequence[ObjectName]) -> None:
        for name in names:
            self.locks[name] -= 1

    def delete(self, names: Sequence[ObjectName]) -> None:
        if self.deletes:
            for name in names:
                self.objects.pop(name, None)

    def close(self) -> None:
        self.closed += 1
