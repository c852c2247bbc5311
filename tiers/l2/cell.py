"""One cell of the matrix: every requested operation at one object size and one depth, verified."""

import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from contract.progress import Progress
from tiers.interfaces import Batch, Bytes, L2Backend, ObjectName, Operation, Task
from tiers.l2.arena import allocate
from tiers.l2.objects import Objects
from tiers.l2.page_cache import drop
from tiers.l2.parameters import L2Parameters
from tiers.l2.records import CellRecord, RoundRecord, TaskRecord
from tiers.l2.specs import Spec
from tiers.l2.tasks import Round, TaskOutcome, run_round
from tiers.payload import POISON, difference

CLEANUP_SECONDS = 60.0
FRUITLESS_ROUNDS = 3
"""Rounds in a row of which nothing succeeded: a service that died, and more of them would tell nothing new."""

PATIENCE = 4
"""Time-outs that late tasks are given before a run that goes on after time-outs gives up as well."""

Work = list[tuple[Operation, Batch]]


class Halted(Exception):  # noqa: N818 - a way to end: what was measured so far stays
    """A time-out, the deadline or the user ended the run."""


@dataclass
class Findings:
    """What the checks looked at and what they found, over a whole run."""

    operations: int = 0
    failed_operations: int = 0
    operation_failures: list[str] = field(default_factory=list)
    lookups: int = 0
    lookup_failures: list[str] = field(default_factory=list)
    absent: int = 0
    """Keys that a lookup by itself asked for and that no earlier run had stored: the guide's "may be lower"."""
    verified: int = 0
    data_failures: list[str] = field(default_factory=list)
    cold_keys: int = 0
    warm_keys: list[str] = field(default_factory=list)
    timeouts: list[str] = field(default_factory=list)
    rounds: int = 0
    dropped: int = 0
    not_dropped: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def never_stored(self) -> str | None:
        if not self.absent:
            return None
        return f"{self.absent} keys that may have been there were not: --only store with the same options stores them"


class Cell:
    """Measures into `record` and `findings`. `open_backend` makes the adapter over a buffer."""

    def __init__(
        self,
        open_backend: Callable[[Bytes], L2Backend],
        spec: Spec,
        parameters: L2Parameters,
        *,
        size_kb: int,
        depth: int,
        token: str,
        until: float,
        stop: threading.Event,
        findings: Findings,
        progress: Progress,
        say: Callable[[str], None],
    ) -> None:
        self._parameters = parameters
        self._spec = spec
        self._depth = depth
        self._token = token
        self._until = until
        self._stop = stop
        self._findings = findings
        self._progress = progress
        self._say = say
        self._objects = Objects(parameters.seed, size_kb * 1024)
        self._keys_per_round = depth * parameters.num_keys
        self._arena = allocate(
            2 * self._keys_per_round * self._objects.size,
            align_bytes=parameters.l1_align_bytes,
            hugepages=parameters.l1_use_hugepages,
        )
        self._index: dict[ObjectName, int] = {}
        self._written: list[int] = []
        self._stored_beside: list[int] = []
        self._fruitless = 0
        self._silent = False
        self._backend = open_backend(self._arena)
        self.record = CellRecord(self._backend.name, spec.type, size_kb, depth)

    # --- the way of a cell ---

    def probe(self, timeout: float) -> bool:
        """Whether the adapter answers a lookup at all within `timeout` seconds."""
        work = [(Operation.LOOKUP, self._backend.prepare([self._objects.missing(self._token, -1)], None))]
        return not run_round(self._backend, work, timeout=timeout, until=self._until).timed_out

    def run(self) -> None:
        """Raises Halted when it could not go on; what was measured is in the record."""
        p = self._parameters
        stored = p.total_rounds * self._keys_per_round
        try:
            for operation in p.operations:
                self._rounds(operation)
            if not p.skip_verify:
                self._read_back(range(stored) if p.only == "store" else self._stored_beside)
                self._say_verified()
        finally:
            # What an adapter that answers no more still holds cannot be removed.
            if p.only is None and not p.keep and not self._silent:
                self._remove_quietly()

    def _say_verified(self) -> None:
        findings = self._findings
        if any(operation != "lookup" for operation in self._parameters.operations):
            wrong = len(findings.data_failures)
            self._say(
                f"\n[Verify] {'OK' if not wrong else 'MISMATCH'}: {findings.verified} objects compared whole"
            )

    def remove(self) -> tuple[int, int]:
        """Remove what this run stored or, to clean, what runs with these parameters may have; how many objects there
        were and how many stay. Raises Halted."""
        p = self._parameters
        # Mixed rounds store behind the others.
        indices = range(2 * p.total_rounds * self._keys_per_round) if p.clean else self._written
        # Also a run that is over has to clean up.
        self._until = max(self._until, time.monotonic() + CLEANUP_SECONDS)
        before = left = 0
        for names in self._parts(indices):
            if present := self._present(names):
                self._backend.delete(present)
                before += len(present)
                left += len(self._present(present))
        if left:
            self.record.notes.append(
                f"{left} own objects stay in {self._backend.name}: it does not delete them (seed {p.seed})"
            )
        return before, left

    def _remove_quietly(self) -> None:
        """The end of a run: what went wrong before matters more."""
        try:
            self.remove()
        except Halted as halt:
            self.record.notes.append(f"own objects stay (seed {self._parameters.seed}): {halt}")

    def close(self) -> None:
        """Adapters whose service is gone may never return from closing."""
        closing = threading.Thread(target=self._backend.close, daemon=True)
        closing.start()
        closing.join(5.0)

    # --- rounds ---

    def _rounds(self, operation: str) -> None:
        p = self._parameters
        title = operation.capitalize()
        self._say(f"\n[{title}] Running {p.warmup_rounds} warmup + {p.rounds} measurement rounds...")
        for number in range(p.total_rounds):
            self._require_time()
            self._progress(f"{self._backend.name} {operation}", number, p.total_rounds)
            warmup = number < p.warmup_rounds
            if operation == "store":
                self._make_cold(range(number * self._keys_per_round, (number + 1) * self._keys_per_round))
            work, expected = self._work(operation, number)
            if p.page_cache == "drop" and operation != "store":
                self._drop_pages()
            measured = run_round(self._backend, work, timeout=p.task_timeout, until=self._until)
            self._account(operation, number, warmup, measured, expected)

    def _work(self, operation: str, number: int) -> tuple[Work, list[tuple[bool, ...]]]:
        """The tasks of a round, and per task which of its keys should be found (lookups only)."""
        tasks = [self._indices(number, task) for task in range(self._depth)]
        if operation == "store":
            return [self._store(task, indices) for task, indices in enumerate(tasks)], []
        if operation == "load":
            return [self._load(task, indices) for task, indices in enumerate(tasks)], []
        if operation == "lookup":
            return self._lookups(number, tasks)
        share = 0.5 if self._parameters.mixed is None else self._parameters.mixed
        loads = round(self._depth * share)
        fresh = self._parameters.total_rounds * self._keys_per_round
        work: Work = [self._load(task, tasks[task]) for task in range(loads)]
        for task in range(loads, self._depth):
            indices = [fresh + index for index in tasks[task]]
            # What is not there is not deleted: some adapters would count it twice.
            if present := self._present([self._objects.name(index) for index in indices]):
                self._backend.delete(present)
            work.append(self._store(task, indices))
            self._stored_beside += indices
        random.Random(f"{self._parameters.seed} mixed {number}").shuffle(work)
        return work, []

    def _indices(self, number: int, task: int) -> list[int]:
        first = number * self._keys_per_round + task * self._parameters.num_keys
        return list(range(first, first + self._parameters.num_keys))

    def _buffers(self, half: int, task: int) -> list[Bytes]:
        size, keys = self._objects.size, self._parameters.num_keys
        first = (half * self._keys_per_round + task * keys) * size
        return [self._arena[first + key * size : first + (key + 1) * size] for key in range(keys)]

    def _store(self, task: int, indices: Sequence[int]) -> tuple[Operation, Batch]:
        buffers = self._buffers(0, task)
        for buffer, index in zip(buffers, indices, strict=True):
            buffer[:] = self._objects.content(index)
        names = self._names(indices)
        self._written += indices
        return Operation.STORE, self._backend.prepare(names, buffers)

    def _load(self, task: int, indices: Sequence[int]) -> tuple[Operation, Batch]:
        buffers = self._buffers(1, task)
        for buffer in buffers:
            buffer[:] = POISON
        names = self._names(indices)
        return Operation.LOAD, self._backend.prepare(names, buffers)

    def _names(self, indices: Sequence[int]) -> list[ObjectName]:
        names = [self._objects.name(index) for index in indices]
        self._index.update(zip(names, indices, strict=True))
        return names

    def _lookups(self, number: int, tasks: list[list[int]]) -> tuple[Work, list[tuple[bool, ...]]]:
        """Keys that were stored and keys that never were, mixed; over the measured rounds floor(keys * rate) hits."""
        rate, keys = self._parameters.lookup_max_hit_rate, self._keys_per_round
        measured = number - self._parameters.warmup_rounds
        hits = (
            int((measured + 1) * keys * rate) - int(measured * keys * rate)
            if measured >= 0
            else int(keys * rate)
        )
        draw = random.Random(f"{self._parameters.seed} lookup {number}")
        hit = set(draw.sample([index for indices in tasks for index in indices], hits))
        if measured >= 0:
            self.record.expected_hits += hits
        work: Work = []
        expected = []
        for indices in tasks:
            names = [
                self._objects.name(index) if index in hit else self._objects.missing(self._token, index)
                for index in indices
            ]
            work.append((Operation.LOOKUP, self._backend.prepare(names, None)))
            expected.append(tuple(index in hit for index in indices))
        return work, expected

    # --- what a round showed ---

    def _account(
        self, operation: str, number: int, warmup: bool, measured: Round, expected: list[tuple[bool, ...]]
    ) -> None:
        findings = self._findings
        findings.rounds += 1
        records = []
        for index, outcome in enumerate(measured.tasks):
            place = f"{self._place} {operation} round {number + 1} task {index + 1}"
            records.append(self._task(outcome, place, expected[index] if expected else None))
        done = RoundRecord(operation, number, warmup, measured.seconds, tuple(records))
        self.record.rounds.append(done)
        word = {"store": "success_keys", "lookup": "found", "load": "loaded"}.get(operation, "success_keys")
        took = "TIMEOUT" if measured.seconds is None else f"{measured.seconds * 1000:.2f} ms"
        self._say(
            f"  [{operation.capitalize()}] Round {number + 1}: {took}, {word}={done.succeeded}/{done.keys}"
        )
        self._fruitless = self._fruitless + 1 if operation != "lookup" and not done.succeeded else 0
        if measured.timed_out:
            halt = self._no_answer(f"{operation} round {number + 1}")
            if not self._parameters.continue_after_timeout or time.monotonic() >= self._until:
                raise halt
            self._drain(measured.late)
        elif self._fruitless == FRUITLESS_ROUNDS:
            raise Halted(
                f"{self._place} {operation} round {number + 1}: nothing succeeded, {FRUITLESS_ROUNDS} rounds in a row"
            )

    def _task(self, outcome: TaskOutcome, place: str, expected: tuple[bool, ...] | None) -> TaskRecord:
        findings, names = self._findings, outcome.batch.names
        if outcome.result is None:
            return TaskRecord(outcome.operation.value, len(names), 0, None, None)
        found = outcome.result.found
        if outcome.operation is Operation.LOOKUP:
            self._check_lookup(found, expected or (), names, place)
            return TaskRecord("lookup", len(names), sum(found), outcome.seconds, None)
        findings.operations += len(names)
        failed = len(found) - sum(found)
        if failed:
            findings.failed_operations += failed
            findings.operation_failures.append(f"{place}: {failed} of {len(found)} objects failed")
        if outcome.operation is Operation.STORE:
            return TaskRecord("store", len(names), sum(found), outcome.seconds, self._moved(outcome))
        right = found if self._parameters.skip_verify else self._verify(outcome.batch, found, place)
        moved = sum(right) * self._objects.size
        return TaskRecord("load", len(names), sum(right), outcome.seconds, moved)

    @staticmethod
    def _moved(outcome: TaskOutcome) -> int | None:
        """Adapters that write but count nothing say 0, as one does that wrote nothing: neither is a throughput."""
        if outcome.result is None or not any(outcome.result.found):
            return 0
        return outcome.result.moved_bytes or None

    def _check_lookup(
        self, found: Sequence[bool], expected: Sequence[bool], names: Sequence[ObjectName], place: str
    ) -> None:
        findings = self._findings
        findings.lookups += len(found)
        locked = [name for name, there in zip(names, found, strict=True) if there]
        if locked:
            self._backend.unlock(locked)
        absent = sum(wanted and not there for wanted, there in zip(expected, found, strict=True))
        invented = sum(there and not wanted for wanted, there in zip(expected, found, strict=True))
        if absent and self._parameters.only == "lookup":
            findings.absent += absent
        elif absent:
            findings.lookup_failures.append(f"{place}: {absent} stored keys not found")
        if invented:
            findings.lookup_failures.append(f"{place}: {invented} keys found that were never stored")

    def _verify(self, batch: Batch, found: Sequence[bool], place: str) -> tuple[bool, ...]:
        """Which objects were loaded and are right, byte for byte."""
        right = []
        for name, buffer, there in zip(batch.names, batch.buffers or (), found, strict=True):
            if not there:
                right.append(False)
                continue
            self._findings.verified += 1
            problem = difference(buffer, self._objects.content(self._index[name]))
            right.append(problem is None)
            if problem is not None:
                self._findings.data_failures.append(f"{place}: object {self._index[name]}: {problem}")
        return tuple(right)

    # --- before and after ---

    def _make_cold(self, indices: range) -> None:
        """Nothing of ours may be there before a store: adapters skip what they have, and that is no store."""
        for names in self._parts(indices):
            self._require_time()
            self._findings.cold_keys += len(names)
            present = self._present(names)
            if not present:
                continue
            self._backend.delete(present)
            left = self._present(present)
            if left:
                message = (
                    f"{self._place}: {len(left)} own objects are there before the store and cannot be deleted"
                )
                self._findings.warm_keys.append(message)
                raise Halted(f"{message}; another --seed has other names")

    def _parts(self, indices: Sequence[int]) -> Iterator[list[ObjectName]]:
        """Names in pieces of the size of a task."""
        for first in range(0, len(indices), self._parameters.num_keys):
            yield [self._objects.name(index) for index in indices[first : first + self._parameters.num_keys]]

    def _present(self, names: Sequence[ObjectName]) -> list[ObjectName]:
        """Which names the adapter finds; nothing stays locked."""
        work = [(Operation.LOOKUP, self._backend.prepare(names, None))]
        looked = run_round(self._backend, work, timeout=self._parameters.task_timeout, until=self._until)
        result = looked.tasks[0].result
        if result is None:
            raise self._no_answer("lookup of own objects")
        present = [name for name, there in zip(names, result.found, strict=True) if there]
        if present:
            self._backend.unlock(present)
        return present

    def _read_back(self, indices: Sequence[int]) -> None:
        """A store that no measured load follows proves nothing: load everything once, unmeasured, and compare."""
        for first in range(0, len(indices), self._parameters.num_keys):
            self._require_time()
            part = indices[first : first + self._parameters.num_keys]
            looked = run_round(
                self._backend,
                [self._load(0, part)],
                timeout=self._parameters.task_timeout,
                until=self._until,
            )
            self._task(looked.tasks[0], f"{self._place} read back", None)
            if looked.timed_out:
                raise self._no_answer("reading back")
        if self._parameters.page_cache == "drop":
            self._drop_pages()

    def _drop_pages(self) -> None:
        if self._spec.folder is None:
            raise ValueError("pages are dropped of adapters of files only")
        stays = drop(self._spec.folder, self._objects.model)
        if stays is None:
            return
        self._findings.dropped += 1
        if stays > 0:
            self._findings.not_dropped.append(
                f"{self._place}: {stays:.0%} of the files' pages stay in memory after dropping them"
            )

    def _no_answer(self, what: str) -> Halted:
        """What a task that did not end is called; its adapter is not asked again."""
        self._silent = True
        message = (
            f"{self._place} {what}: --deadline {self._parameters.deadline:g} s is over"
            if time.monotonic() >= self._until
            else f"{self._place} {what}: not done within {self._parameters.task_timeout:g} s"
        )
        self._findings.timeouts.append(message)
        return Halted(message)

    def _drain(self, late: Collection[Task]) -> None:
        """An adapter may write to the buffers of its late tasks: only when they have ended can one go on."""
        waiting = set(late)
        patience = min(time.monotonic() + PATIENCE * self._parameters.task_timeout, self._until)
        while waiting and (left := patience - time.monotonic()) > 0:
            waiting -= self._backend.wait(waiting, left).keys()
        self._silent = bool(waiting)
        if waiting:
            raise Halted(f"{self._place}: the adapter never ended {len(waiting)} tasks")

    def _require_time(self) -> None:
        if self._stop.is_set():
            self._findings.interrupted = True
            raise Halted("interrupted")
        if time.monotonic() >= self._until:
            self._findings.timeouts.append(
                f"{self._place}: --deadline {self._parameters.deadline:g} s is over"
            )
            raise Halted(self._findings.timeouts[-1])

    @property
    def _place(self) -> str:
        return f"{self.record.adapter} {self.record.data_size_kb} KiB x{self._depth}"
