"""What was planned for each request beside what the engine answered, as columns.

Columns are numpy arrays in final order of the requests (`Attempts`: in the order in which they ended), so that a
million requests cost some hundred bytes each and no Python objects. -1 stands for a count that is not known, NaN for
a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cachemodel.watermark import requests_by_lane
from contract.errors import ArtifactError
from contract.planned import UNKNOWN, Integers, PlannedColumns, planned_columns
from contract.records import REQUEST_SCHEMA
from contract.run_directory import MeasurementDirectory
from contract.streams import read_parquet, read_stream

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_COUNTS = (
    "position",
    "attempt",
    "started_ns",
    "chunks",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
)
_TIMES = ("wall_start", "ttft_s", "e2el_s")
_TEXTS = ("request_id", "error_kind")
# Everything but the gaps between chunks, by far the longest column.
_COLUMNS = [*_COUNTS, *_TIMES, *_TEXTS]


@dataclass(frozen=True)
class Attempts:
    """One entry per attempt of a request (`contract.records.RequestRecord`)."""

    position: Integers
    attempt: Integers
    started_ns: Integers
    chunks: Integers
    prompt_tokens: Integers
    completion_tokens: Integers
    cached_tokens: Integers
    wall_start: Floats
    ttft_s: Floats
    e2el_s: Floats
    request_id: pa.ChunkedArray
    error_kind: pa.ChunkedArray

    @property
    def count(self) -> int:
        return int(self.position.size)

    @cached_property
    def answered(self) -> Flags:
        flags: Flags = pc.is_null(self.error_kind).to_numpy()
        return flags

    def failures(self) -> dict[str, int]:
        """How many attempts failed, by kind."""
        counted = pc.value_counts(self.error_kind.drop_null())
        return dict(sorted((item["values"], item["counts"]) for item in counted.to_pylist()))


@dataclass(frozen=True)
class RequestTable:
    """Plan and attempts joined. `last`: each request's last attempt; -1: it was never sent.

    `void` marks the requests whose theory a failure in their lane, their own included, took the ground from (design,
    section 5). A repeated attempt counts as a failure: it may have found what the first one left in the cache.
    """

    plan: PlannedColumns
    attempts: Attempts
    last: Integers
    answered: Flags
    void: Flags

    @property
    def count(self) -> int:
        return self.plan.count

    @cached_property
    def prompt_tokens(self) -> Integers:
        return self._answer(self.attempts.prompt_tokens)

    @cached_property
    def completion_tokens(self) -> Integers:
        return self._answer(self.attempts.completion_tokens)

    @cached_property
    def cached_tokens(self) -> Integers:
        return self._answer(self.attempts.cached_tokens)

    @cached_property
    def failed(self) -> int:
        """Requests that failed in the end or were never sent."""
        return int((~self.answered).sum())

    @property
    def retried(self) -> int:
        """Attempts beyond the first of each request."""
        return int((self.attempts.attempt > 1).sum())

    def request_id(self, position: int) -> str:
        """The id of a request that was sent."""
        return str(self.attempts.request_id[int(self.last[position])].as_py())

    def _answer(self, column: Integers) -> Integers:
        """A column of the last attempts; UNKNOWN for requests without an answer."""
        values = np.full(self.count, UNKNOWN, dtype=np.int64)
        values[self.answered] = column[self.last[self.answered]]
        return values


def request_table(full: Path, directory: MeasurementDirectory) -> RequestTable:
    """All requests of a measurement. Raises ArtifactError when nothing was recorded or records are not of this plan."""
    return join_records(planned_columns(full), directory, full.name)


def join_records(plan: PlannedColumns, directory: MeasurementDirectory, name: str) -> RequestTable:
    """The requests of a plan, read from the file `name`, with their records. Raises as `request_table`."""
    attempts = read_attempts(directory)
    if attempts.count and int(attempts.position.max()) >= plan.count:
        raise ArtifactError(
            f"{directory.root}: holds a request at position {int(attempts.position.max())}; {name} has only "
            f"{plan.count} rows"
        )
    last = np.full(plan.count, UNKNOWN, dtype=np.int64)
    by_attempt = np.argsort(attempts.attempt, kind="stable")
    last[attempts.position[by_attempt]] = by_attempt
    sent = last != UNKNOWN
    answered = sent.copy()
    answered[sent] = attempts.answered[last[sent]]
    failed = ~sent
    failed[attempts.position[~attempts.answered]] = True
    return RequestTable(plan, attempts, last, answered, _void(plan, failed))


def _void(plan: PlannedColumns, failed: Flags) -> Flags:
    void = failed.copy()
    if plan.lane is not None:
        for requests in requests_by_lane(plan.lane):
            void[requests] = np.logical_or.accumulate(failed[requests])
    return void


def read_attempts(directory: MeasurementDirectory) -> Attempts:
    """Every attempt, in the order in which they ended."""
    batches = list(record_batches(directory, _COLUMNS))
    table = pa.Table.from_batches(
        batches, schema=pa.schema([REQUEST_SCHEMA.field(name) for name in _COLUMNS])
    )
    columns: dict[str, Any] = {name: table[name] for name in _TEXTS}
    for name in _COUNTS:
        column = pc.fill_null(table[name], UNKNOWN) if table[name].null_count else table[name]
        columns[name] = column.to_numpy().astype(np.int64)
    for name in _TIMES:
        columns[name] = table[name].to_numpy()
    return Attempts(**columns)


def record_batches(directory: MeasurementDirectory, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The records in pieces; from the stream when the run died before it became Parquet.

    Raises ArtifactError when there are none or they cannot be read.
    """
    if directory.requests.is_file():
        yield from read_parquet(directory.requests, columns)
    elif directory.requests_stream.is_file():
        for batch in read_stream(directory.requests_stream):
            yield batch.select(columns)
    else:
        raise ArtifactError(
            f"{directory.root}: has no request records; the run ended before its formal phase"
        )
