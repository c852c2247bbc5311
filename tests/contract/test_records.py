import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contract.records import REQUEST_SCHEMA, RequestRecord, to_batch


def record(**changes):
    base = RequestRecord(
        position=0, request_id="r0", group="g", dp_rank=1, lane_sequence=2, attempt=1, started_ns=10**15,
        wall_start=1.8e9, ttft_s=0.5, e2el_s=2.0, itl_s=(0.25, 0.5), chunks=3, http_status=200, error_kind=None,
        error_text=None, prompt_tokens=320, completion_tokens=4, cached_tokens=256, finish_reason="length",
    )  # fmt: skip
    return base._replace(**changes)


FAILED = record(
    dp_rank=None, lane_sequence=None, ttft_s=None, e2el_s=None, itl_s=(), chunks=0, http_status=None,
    error_kind="reset", error_text="gone", prompt_tokens=None, completion_tokens=None, cached_tokens=None,
    finish_reason=None,
)  # fmt: skip


@pytest.mark.parametrize("rows", [[], [record()], [record(position=i) for i in range(5)] + [FAILED]])
def test_arrow_stream_and_parquet_give_the_records_back(rows):
    batch = to_batch(rows)
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, REQUEST_SCHEMA) as writer:
        writer.write_batch(batch)
    stream.seek(0)
    table = pa.ipc.open_stream(stream).read_all()
    file = io.BytesIO()
    pq.write_table(table, file)
    file.seek(0)
    for read in (table, pq.read_table(file)):
        assert [RequestRecord(**row | {"itl_s": tuple(row["itl_s"])}) for row in read.to_pylist()] == rows


def test_columns_are_those_of_the_record():
    assert tuple(REQUEST_SCHEMA.names) == RequestRecord._fields


def test_time_per_output_token():
    assert record().tpot_s == 0.5
    for missing in (
        {"ttft_s": None},
        {"e2el_s": None},
        {"completion_tokens": 1},
        {"completion_tokens": None},
    ):
        assert record(**missing).tpot_s is None
