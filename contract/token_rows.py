"""Random access to the prompts in token_ids.arrow: requests are not always admitted in the order of the file."""

from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from contract.errors import ArtifactError
from contract.files import regular
from contract.token_ids import Int32Array


class TokenRows:
    """The token ids of each request, memory-mapped. Use it in a `with` block."""

    def __init__(self, path: Path) -> None:
        try:
            self._source = pa.memory_map(str(regular(path)))
            self._reader = pa.ipc.open_file(self._source)
        except (OSError, pa.ArrowInvalid) as error:
            raise ArtifactError(f"{path}: not a readable Arrow file ({error}); run prepare again") from error
        count = self._reader.num_record_batches
        lengths = [self._reader.get_batch(number).num_rows for number in range(count)]
        self._ends = np.cumsum(lengths, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends.size else 0

    def __getitem__(self, position: int) -> Int32Array:
        """Ids of one request, int32, shape (input tokens,)."""
        number = int(np.searchsorted(self._ends, position, side="right"))
        column = self._reader.get_batch(number).column(0)
        ids: Int32Array = column[position - (int(self._ends[number]) - len(column))].values.to_numpy()
        return ids

    def __enter__(self) -> "TokenRows":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.close()
