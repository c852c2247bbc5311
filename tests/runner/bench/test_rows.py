"""The CSV file: the guide's columns, seconds and epoch seconds, nothing where nothing is known."""

import csv
from pathlib import Path

from runner.bench.rows import CsvRows
from tests.runner.bench.records import failed, record

HEADER = (
    "request_id,successful,ttft,request_latency,num_input_tokens,num_output_tokens,decode_speed,submit_time,"
    "first_token_time,finish_time,error,group,position,cached_tokens,tpot,finish_reason,error_kind,http_status"
)


def test_rows_are_there_as_soon_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "bench_results.csv"
    rows = CsvRows(path)
    assert path.read_text() == HEADER + "\n"
    rows.append(record(0))
    assert path.read_text().splitlines()[1] == (
        "r0,True,0.25,1.0,100,4,4.0,1700000000.0,1700000000.25,1700000001.0,,g,0,64,0.25,length,,200"
    )
    rows.append(failed(1))
    rows.append(record(2, completion_tokens=1, itl_s=()))
    rows.close()
    _, broken, short = csv.DictReader(path.open())
    assert (broken["successful"], broken["ttft"], broken["num_input_tokens"]) == ("False", "", "")
    assert broken["error"] == 'HTTP 500: oops, "really"'
    assert (short["decode_speed"], short["tpot"]) == ("", ""), (
        "one token has no speed: no interval was measured"
    )
