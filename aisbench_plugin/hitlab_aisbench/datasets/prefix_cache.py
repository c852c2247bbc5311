"""The prepared requests as an AISBench dataset."""

from pathlib import Path
from typing import Any

import orjson
from ais_bench.benchmark.datasets.base import BaseDataset
from datasets import Dataset, Features, Value

FEATURES = Features(
    {
        "question": Value("string"),
        "answer": Value("string"),
        "max_out_len": Value("int64"),
        "request_id": Value("string"),
        "group": Value("string"),
        "dp_rank": Value("int32"),
        "lane_sequence": Value("int64"),
        "offset": Value("int64"),
        "length": Value("int64"),
    }
)


class PrefixCacheDataset(BaseDataset):
    """The rows of full.jsonl, in final order. `dp_rank` and `lane_sequence` are None in rows without a lane.

    `offset` and `length` are the bytes of a row in the file `full_path`.
    """

    def load(self, full_path: str, **_: Any) -> Dataset:
        self.full_path = full_path
        offset = 0
        columns: dict[str, list[Any]] = {name: [] for name in FEATURES}
        with Path(full_path).open("rb") as file:
            for position, line in enumerate(file):
                row = orjson.loads(line)
                for name, value in self.columns_of(row, position, full_path).items():
                    columns[name].append(value)
                columns["offset"].append(offset)
                columns["length"].append(len(line))
                offset += len(line)
        return Dataset.from_dict(columns, features=FEATURES)

    def columns_of(self, row: dict[str, Any], position: int, path: str) -> dict[str, Any]:
        """What the load needs of a row of the file `path`. Raises ValueError: it is not the one that comes next."""
        if row["sequence_index"] != position:
            raise ValueError(f"{path}:{position + 1}: the rows are not in final order; prepare them again")
        names = ("question", "answer", "request_id", "dp_rank", "lane_sequence")
        return {
            "max_out_len": row["max_tokens"],
            "group": row["group_id"],
            **{name: row[name] for name in names},
        }
