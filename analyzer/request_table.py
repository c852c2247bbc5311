"""Joining what was planned for each request with what the engine reported for it."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from contract.errors import ArtifactError
from contract.records import REQUEST_SCHEMA, RequestRecord
from contract.rows import read_rows
from contract.run_directory import MeasurementDirectory
from contract.streams import read_stream


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """One request: its plan and its last attempt. `record` None: it was never sent.

    `void` when a failure in its lane, its own included, took the ground from its theory (design, section 5).
    """

    position: int
    request_id: str
    group: str
    rank: int | None
    input_tokens: int
    theoretical_hit_tokens: int
    record: RequestRecord | None
    attempts: int
    void: bool

    @property
    def answered(self) -> bool:
        return self.record is not None and self.record.error_kind is None


def measured_requests(full: Path, directory: MeasurementDirectory) -> list[MeasuredRequest]:
    """All requests in final order."""
    attempts: dict[int, list[RequestRecord]] = defaultdict(list)
    for record in read_records(directory):
        attempts[record.position].append(record)
    broken_lanes: set[tuple[str, int]] = set()
    requests = []
    for row in read_rows(full):
        position, group, rank = row["sequence_index"], row["group_id"], row["dp_rank"]
        mine = sorted(attempts.get(position, ()), key=lambda record: record.attempt)
        # A repeated attempt may have found what the first one left in the cache.
        failed = not mine or any(record.error_kind is not None for record in mine)
        lane = None if rank is None else (group, rank)
        if failed and lane is not None:
            broken_lanes.add(lane)
        requests.append(
            MeasuredRequest(
                position=position,
                request_id=row["request_id"],
                group=group,
                rank=rank,
                input_tokens=row["actual_input_tokens"],
                theoretical_hit_tokens=row["theoretical_hit_tokens"],
                record=mine[-1] if mine else None,
                attempts=len(mine),
                void=failed or lane in broken_lanes,
            )
        )
    return requests


def read_records(directory: MeasurementDirectory) -> Iterator[RequestRecord]:
    """Every attempt; from the stream when the run died before it became Parquet."""
    if directory.requests.is_file():
        try:
            file = pq.ParquetFile(directory.requests)
            for batch in file.iter_batches():
                yield from _records(batch)
        except (pa.ArrowInvalid, OSError) as error:
            raise ArtifactError(f"{directory.requests}: not readable as Parquet ({error})") from error
    elif directory.requests_stream.is_file():
        for batch in read_stream(directory.requests_stream):
            yield from _records(batch)
    else:
        raise ArtifactError(
            f"{directory.root}: has no request records; the run ended before its formal phase"
        )


def _records(batch: pa.RecordBatch) -> Iterator[RequestRecord]:
    columns = [batch.column(name).to_pylist() for name in REQUEST_SCHEMA.names]
    for values in zip(*columns, strict=True):
        record = RequestRecord(*values)
        yield record._replace(itl_s=tuple(record.itl_s))
