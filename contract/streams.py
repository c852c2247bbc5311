"""Tables that grow while a run goes on: appended as an Arrow stream, readable when cut, Parquet in the end."""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from contract.documents import whole_file, writing
from contract.errors import ArtifactError
from contract.files import regular

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
    """Appends batches to `path`. What has been appended survives the death of this process.

    The file is an Arrow IPC stream without its optional end mark. A batch is appended whole or, with an ArtifactError,
    not at all: the file ends with the last whole batch also on a full disk.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        with writing(path):
            self._file = path.open("wb", buffering=0)
        self._append(schema.serialize())

    def append(self, batch: pa.RecordBatch) -> None:
        self._append(batch.serialize())

    def _append(self, message: pa.Buffer) -> None:
        with writing(self._path):
            begin = self._file.tell()
            rest = memoryview(message)
            try:
                while rest:
                    # A disk that is nearly full takes a part, and says so only by the count.
                    rest = rest[self._file.write(rest) :]
            except BaseException:
                self._file.seek(begin)
                self._file.truncate()
                raise

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "TableStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_stream(path: Path) -> Iterator[pa.RecordBatch]:
    """The whole batches of a stream, up to where it was cut."""
    with pa.memory_map(str(regular(path))) as source:
        try:
            reader = pa.ipc.open_stream(source)
            while True:
                batch = reader.read_next_batch()
                batch.validate(full=True)  # what is damaged must not reach whoever computes with it
                yield batch
        except (StopIteration, pa.ArrowInvalid, OSError):
            return  # the end, or what was being written when the process died


def write_parquet(stream: Path, parquet: Path, schema: pa.Schema) -> None:
    """Write what `stream` holds as Parquet, with a checksum of every page."""
    with (
        whole_file(parquet) as file,
        pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for batch in read_stream(stream):
            writer.write_batch(batch)


def stream_to_parquet(stream: Path, parquet: Path, schema: pa.Schema) -> None:
    """`write_parquet`, then remove the stream."""
    write_parquet(stream, parquet, schema)
    stream.unlink()


def read_parquet(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The batches of a Parquet file. Raises ArtifactError when it is damaged, or has not these columns."""
    try:
        with pq.ParquetFile(regular(path), page_checksum_verification=True) as file:
            yield from file.iter_batches(columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise ArtifactError(f"{path}: not readable as Parquet ({error}); restore it") from error
