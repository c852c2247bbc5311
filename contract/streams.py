"""Tables that grow while a run goes on: appended as an Arrow stream, readable when cut, Parquet in the end."""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from contract.documents import whole_file

KV_SAMPLE_SCHEMA = pa.schema(
    [
        pa.field("elapsed_seconds", pa.float64(), nullable=False),
        pa.field("dp_rank", pa.int32(), nullable=False),
        pa.field("kv_cache_usage", pa.float64()),
        pa.field("requests_running", pa.int32()),
        pa.field("requests_waiting", pa.int32()),
    ]
)


class TableStream:
    """Appends batches to `path`. What has been appended survives the death of this process."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = path.open("wb", buffering=0)
        self._writer = pa.ipc.new_stream(self._file, schema)

    def append(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()
        self._file.close()

    def __enter__(self) -> "TableStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_stream(path: Path) -> Iterator[pa.RecordBatch]:
    """The whole batches of a stream, up to where it was cut."""
    with pa.memory_map(str(path)) as source:
        if source.size() == 0:
            return
        reader = pa.ipc.open_stream(source)
        while True:
            try:
                batch = reader.read_next_batch()
            except (StopIteration, pa.ArrowInvalid, OSError):
                return  # the end, or the batch that was being written when the process died
            yield batch


def stream_to_parquet(stream: Path, parquet: Path, schema: pa.Schema) -> None:
    """Write `parquet` from `stream`, then remove the stream."""
    with whole_file(parquet) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in read_stream(stream):
            writer.write_batch(batch)
    stream.unlink()
