"""The images of a folder of MMMU Parquet files, in the order of preference, a few rows in memory at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from contract.errors import ScenarioError
from contract.files import regular
from contract.foreign_text import presentable

PREFERENCE = (
    "/agriculture/test-",
    "/literature/test-",
    "/sociology/test-",
    "/test-",
    "/validation-",
    "/dev-",
)
"""Marks in a path, the first that fits counts (reference 6.1). Equal files of MMMU give equal images everywhere."""

ROWS_PER_BATCH = 1
"""A row of MMMU has up to seven images of several megabytes each; more at once saves no time."""
READ_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class StoredImage:
    """The bytes of one image file, and where they lie. `row_index` counts from 0 within the Parquet file."""

    content: bytes
    parquet_path: Path
    row_index: int
    sample_id: str | None
    image_column: str
    original_path: str | None


def parquet_files(folder: Path) -> list[Path]:
    """All Parquet files below `folder`, the preferred ones first, then by path. Raises ScenarioError: there are none."""
    if not folder.is_dir():
        raise ScenarioError(
            f"multimodal.mmmu_parquet_dir: {folder} is no folder; set it to the one with MMMU's Parquet files"
        )
    found = sorted(folder.rglob("*.parquet"), key=lambda file: (_preference(folder, file), str(file)))
    if not found:
        raise ScenarioError(
            f"multimodal.mmmu_parquet_dir: there is no .parquet file in or below {folder}; download MMMU there"
        )
    return found


def _preference(folder: Path, file: Path) -> int:
    # Only below the folder: where the user keeps it says nothing. MMMU writes subjects with a capital.
    path = f"/{file.relative_to(folder)}".lower()
    return next((rank for rank, mark in enumerate(PREFERENCE) if mark in path), len(PREFERENCE))


def image_columns(schema: pa.Schema) -> list[str]:
    """Names of the columns that hold images: `image_` and a struct of bytes and path, in the schema's order."""
    return [
        column.name
        for column in schema
        if column.name.startswith("image_")
        and pa.types.is_struct(column.type)
        and {"bytes", "path"} <= {inner.name for inner in column.type}
    ]


def stored_images(file: Path) -> Iterator[StoredImage]:
    """The images of one file, row by row and within a row in the order of its columns; empty cells are passed over.

    Raises ScenarioError when the file cannot be read as Parquet.
    """
    try:
        # A row group of MMMU holds hundreds of megabytes: without this all of its columns would be fetched at once.
        with pq.ParquetFile(regular(file), pre_buffer=False, buffer_size=READ_BUFFER_BYTES) as parquet:
            columns = image_columns(parquet.schema_arrow)
            if not columns:
                return
            known_id = ["id"] if "id" in parquet.schema_arrow.names else []
            first = 0
            for batch in parquet.iter_batches(
                ROWS_PER_BATCH, columns=[*known_id, *columns], use_threads=False
            ):
                for row in range(batch.num_rows):
                    yield from _images_of_row(file, batch, row, first + row, columns)
                first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise ScenarioError(
            f"multimodal.mmmu_parquet_dir: {file} cannot be read as Parquet ({presentable(str(error), 200)}); "
            "download it again, or take it out of the folder"
        ) from error


def _images_of_row(
    file: Path, batch: pa.RecordBatch, row: int, row_index: int, columns: list[str]
) -> Iterator[StoredImage]:
    sample: Any = batch.column("id")[row].as_py() if "id" in batch.schema.names else None
    for column in columns:
        cell = batch.column(column)[row]
        content = cell["bytes"].as_py() if cell.is_valid else None
        if isinstance(content, bytes) and content:
            path = cell["path"].as_py()
            yield StoredImage(
                content,
                file,
                row_index,
                None if sample is None else str(sample),
                column,
                None if path is None else str(path),
            )
