"""Parquet files in MMMU's schema, with images made on the spot."""

import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("question", pa.string()),
        ("options", pa.string()),
        ("explanation", pa.string()),
        *((f"image_{number}", IMAGE) for number in range(1, 8)),
        ("img_type", pa.string()),
        ("answer", pa.string()),
        ("topic_difficulty", pa.string()),
        ("question_type", pa.string()),
        ("subfield", pa.string()),
    ]
)
FULL_HD, HD = (1920, 1080), (1280, 720)


def picture(size: tuple[int, int] = FULL_HD, *, seed: int = 0, file_format: str = "PNG") -> bytes:
    """An image file; other seeds give other pixels, and noise in a corner gives it some weight."""
    rng = random.Random(seed)
    image = Image.new("RGB", size, tuple(rng.randbytes(3)))
    corner = min(size[0], 96), min(size[1], 96)
    image.paste(Image.frombytes("RGB", corner, rng.randbytes(corner[0] * corner[1] * 3)), (0, 0))
    file = io.BytesIO()
    image.save(file, file_format)
    return file.getvalue()


def write_mmmu(file: Path, rows: Sequence[Sequence[bytes | None]], *, row_group: int = 100) -> Path:
    """A file with one row per entry, which lists the bytes of its image_1, image_2 and so on."""
    records: list[dict[str, Any]] = []
    for number, images in enumerate(rows):
        record: dict[str, Any] = {name: f"{name} {number}" for name in SCHEMA.names}
        record["id"] = f"{file.stem}_{number}"
        for place in range(7):
            content = images[place] if place < len(images) else None
            record[f"image_{place + 1}"] = (
                None
                if content is None
                else {"bytes": content, "path": f"{file.stem}_{number}_{place + 1}.png"}
            )
        records.append(record)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(records, schema=SCHEMA), file, row_group_size=row_group)
    return file
