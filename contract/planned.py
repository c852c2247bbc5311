"""What was planned for each request: the columns of full.jsonl that are numbers."""

from array import array
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from contract.rows import read_rows

Integers = npt.NDArray[np.int64]

UNKNOWN = -1


@dataclass(frozen=True)
class PlannedColumns:
    """One entry per request, in final order. `rank` is -1 where the service chooses one."""

    group: Integers
    groups: tuple[str, ...]
    rank: Integers
    input_tokens: Integers
    max_tokens: Integers
    shared_prefix_tokens: Integers
    theoretical_hit_tokens: Integers

    @property
    def count(self) -> int:
        return int(self.group.size)

    @cached_property
    def lane(self) -> Integers | None:
        """Number of each request's (group, rank) lane, whose requests are sent one at a time; None: there are none."""
        if not self.count or (self.rank == UNKNOWN).any():
            return None
        lane: Integers = self.group * (int(self.rank.max()) + 1) + self.rank
        return lane


def planned_columns(full: Path) -> PlannedColumns:
    """The columns of full.jsonl; one row is in memory at a time."""
    numbers: dict[str, int] = {}
    columns = {name: array("q") for name in ("group", "rank", "input", "output", "shared", "theory")}
    for row in read_rows(full):
        columns["group"].append(numbers.setdefault(row["group_id"], len(numbers)))
        columns["rank"].append(UNKNOWN if row["dp_rank"] is None else row["dp_rank"])
        columns["input"].append(row["actual_input_tokens"])
        columns["output"].append(row["max_tokens"])
        columns["shared"].append(row["shared_prefix_tokens"])
        columns["theory"].append(row["theoretical_hit_tokens"])
    arrays = {name: np.frombuffer(column, dtype=np.int64) for name, column in columns.items()}
    return PlannedColumns(
        group=arrays["group"],
        groups=tuple(numbers),
        rank=arrays["rank"],
        input_tokens=arrays["input"],
        max_tokens=arrays["output"],
        shared_prefix_tokens=arrays["shared"],
        theoretical_hit_tokens=arrays["theory"],
    )
