"""`token_ids.arrow`: the prompts as the server sees them, one row per request in the order of sending."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from contract.errors import ArtifactError
from contract.files import regular

Int32Array = npt.NDArray[np.int32]
ROWS_PER_BATCH = 64
TOKEN_IDS_SCHEMA = pa.schema([pa.field("token_ids", pa.list_(pa.int32()), nullable=False)])


def token_ids_batch(rows: Sequence[Int32Array]) -> pa.RecordBatch:
    """The ids of several requests as one batch of `TOKEN_IDS_SCHEMA`."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([row.size for row in rows], out=offsets[1:])
    column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(rows), type=pa.int32()))
    return pa.RecordBatch.from_arrays([column], schema=TOKEN_IDS_SCHEMA)


def read_token_ids(path: Path) -> Iterator[Int32Array]:
    """Ids of each request (int32, shape (input tokens,)); the file is memory-mapped and read batch by batch."""
    try:
        with pa.memory_map(str(regular(path))) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                column = reader.get_batch(number).column(0)
                for row in range(len(column)):
                    yield column[row].values.to_numpy()
    except (OSError, pa.ArrowInvalid) as error:
        raise ArtifactError(f"{path}: not a readable Arrow file ({error}); run prepare again") from error
