"""`bench_results.csv`: a row for each measured request, written when it ends."""

import csv
import os
from pathlib import Path
from typing import Any

from contract.documents import writing
from contract.records import RequestRecord

COLUMNS = (
    "request_id",
    "successful",
    "ttft",
    "request_latency",
    "num_input_tokens",
    "num_output_tokens",
    "decode_speed",
    "submit_time",
    "first_token_time",
    "finish_time",
    "error",
    # Beyond the guide's.
    "group",
    "position",
    "cached_tokens",
    "tpot",
    "finish_reason",
    "error_kind",
    "http_status",
)


def row(record: RequestRecord) -> dict[str, Any]:
    """Seconds and epoch seconds; "" for what is not known. decode_speed: tokens after the first per second."""
    speed = None if not record.tpot_s else 1 / record.tpot_s
    values: dict[str, Any] = {
        "request_id": record.request_id,
        "successful": record.error_kind is None,
        "ttft": record.ttft_s,
        "request_latency": record.e2el_s,
        "num_input_tokens": record.prompt_tokens,
        "num_output_tokens": record.completion_tokens,
        "decode_speed": speed,
        "submit_time": record.wall_start,
        "first_token_time": None if record.ttft_s is None else record.wall_start + record.ttft_s,
        "finish_time": None if record.e2el_s is None else record.wall_start + record.e2el_s,
        "error": record.error_text,
        "group": record.group,
        "position": record.position,
        "cached_tokens": record.cached_tokens,
        "tpot": record.tpot_s,
        "finish_reason": record.finish_reason,
        "error_kind": record.error_kind,
        "http_status": record.http_status,
    }
    return {name: "" if value is None else value for name, value in values.items()}


class CsvRows:
    """Appends rows. Each is on its way to the disk before the next one comes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with writing(path):
            self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, COLUMNS, lineterminator=os.linesep)
        with writing(path):
            self._writer.writeheader()
            self._file.flush()

    def append(self, record: RequestRecord) -> None:
        with writing(self._path):
            self._writer.writerow(row(record))
            self._file.flush()

    def close(self) -> None:
        self._file.close()
