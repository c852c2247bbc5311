"""Every measurement as a row of a Parquet file."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from contract.documents import whole_file
from tiers.l2.records import CellRecord
from tiers.server.records import Sample

L2_SCHEMA = pa.schema(
    [
        pa.field("adapter", pa.string(), nullable=False),
        pa.field("data_size_kb", pa.int32(), nullable=False),
        pa.field("in_flight", pa.int32(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("round", pa.int32(), nullable=False),
        pa.field("warmup", pa.bool_(), nullable=False),
        pa.field("round_seconds", pa.float64()),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("keys", pa.int32(), nullable=False),
        pa.field("succeeded", pa.int32(), nullable=False),
        pa.field("seconds", pa.float64()),
        pa.field("moved_bytes", pa.int64()),
    ]
)
"""A row per task; `seconds` and `round_seconds` are null for what timed out."""

SERVER_SCHEMA = pa.schema(
    [
        pa.field("client", pa.int32(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("start", pa.float64(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("measured", pa.bool_(), nullable=False),
    ]
)
"""A row per operation and rank; rank -1 is the whole of a fan-out."""


def l2_table(cells: list[CellRecord]) -> pa.Table:
    rows = [
        {
            "adapter": cell.adapter,
            "data_size_kb": cell.data_size_kb,
            "in_flight": cell.in_flight,
            "phase": measured.operation,
            "round": measured.number,
            "warmup": measured.warmup,
            "round_seconds": measured.seconds,
            "operation": task.operation,
            "keys": task.keys,
            "succeeded": task.succeeded,
            "seconds": task.seconds,
            "moved_bytes": task.moved_bytes,
        }
        for cell in cells
        for measured in cell.rounds
        for task in measured.tasks
    ]
    return pa.Table.from_pylist(rows, schema=L2_SCHEMA)


def server_table(samples: list[Sample]) -> pa.Table:
    names = SERVER_SCHEMA.names
    return pa.Table.from_pylist(
        [{name: getattr(sample, name) for name in names} for sample in samples], schema=SERVER_SCHEMA
    )


def write_table(path: Path, table: pa.Table) -> None:
    """Raises ArtifactError when it cannot be written."""
    with whole_file(path) as file:
        pq.write_table(table, file, compression="zstd")
