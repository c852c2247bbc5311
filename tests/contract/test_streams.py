"""Tables on disk while they grow: cut anywhere, and on disks that take no more."""

import errno
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contract.errors import ArtifactError
from contract.events import EventLog, has_writer
from contract.redaction import Redactor
from contract.streams import KV_SAMPLE_SCHEMA, TableStream, read_stream, stream_to_parquet


def batch(*elapsed: float) -> pa.RecordBatch:
    rows = [
        {
            "elapsed_seconds": at,
            "dp_rank": 0,
            "kv_cache_usage": None,
            "requests_running": 1,
            "requests_waiting": 0,
        }
        for at in elapsed
    ]
    return pa.RecordBatch.from_pylist(rows, schema=KV_SAMPLE_SCHEMA)


def elapsed_in(path: Path) -> list[float]:
    return [at for part in read_stream(path) for at in part.column("elapsed_seconds").to_pylist()]


def test_a_stream_cut_at_any_byte_has_the_whole_batches_before_it(tmp_path: Path) -> None:
    path, cut = tmp_path / "s", tmp_path / "cut"
    ends = []
    with TableStream(path, KV_SAMPLE_SCHEMA) as stream:
        for part in (batch(1, 2), batch(3), batch(4, 5, 6)):
            stream.append(part)
            ends.append(path.stat().st_size)
    content = path.read_bytes()
    for size in range(len(content) + 1):
        cut.write_bytes(content[:size])
        whole = [[1, 2], [3], [4, 5, 6]][: sum(size >= end for end in ends)]
        assert elapsed_in(cut) == [at for part in whole for at in part]


def test_any_arrow_reader_reads_it(tmp_path: Path) -> None:
    with TableStream(tmp_path / "s", KV_SAMPLE_SCHEMA) as stream:
        stream.append(batch(1, 2))
        table = pa.ipc.open_stream((tmp_path / "s").read_bytes()).read_all()
    assert table.schema.equals(KV_SAMPLE_SCHEMA)
    assert table.column("elapsed_seconds").to_pylist() == [1, 2]


class _FullDisk:
    """A file on a disk that takes `room` more bytes: a part of a write first, then an error."""

    def __init__(self, file: io.FileIO, room: int) -> None:
        self._file, self.room = file, room

    def write(self, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._file.write(data[: self.room])
        self.room -= written
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("room", [0, 1, 50, 300])
def test_a_full_disk_leaves_whole_batches_and_room_is_used_again(tmp_path: Path, room: int) -> None:
    path = tmp_path / "s"
    with TableStream(path, KV_SAMPLE_SCHEMA) as stream:
        stream.append(batch(1, 2))
        size = path.stat().st_size
        disk = _FullDisk(stream._file, room)
        stream._file = disk  # type: ignore[assignment]
        with pytest.raises(
            ArtifactError, match=r"s: cannot be written \(No space left on device\); free space"
        ):
            stream.append(batch(3))
        assert path.stat().st_size == size
        disk.room = 1 << 20
        stream.append(batch(4))
    assert elapsed_in(path) == [1, 2, 4]


def test_a_stream_becomes_parquet_or_stays(tmp_path: Path) -> None:
    stream, parquet = tmp_path / "s", tmp_path / "missing" / "p"
    with TableStream(stream, KV_SAMPLE_SCHEMA) as growing:
        growing.append(batch(1, 2))
    with pytest.raises(ArtifactError, match="p: cannot be written"):
        stream_to_parquet(stream, parquet, KV_SAMPLE_SCHEMA)
    assert elapsed_in(stream) == [1, 2]
    stream_to_parquet(stream, tmp_path / "p", KV_SAMPLE_SCHEMA)
    assert not stream.exists()
    assert pq.read_table(tmp_path / "p").column("elapsed_seconds").to_pylist() == [1, 2]


def test_the_writer_of_events_is_seen_until_it_closes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path, Redactor("the-secret"))
    log.write("warning", message="a the-secret", nested=[{"the-secret": 1}])
    assert has_writer(path)
    with pytest.raises(ArtifactError):
        EventLog(path, Redactor())
    log.close()
    assert not has_writer(path)
    assert b"the-secret" not in path.read_bytes()
