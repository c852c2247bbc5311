"""Choosing the image: the first of exactly the native size that decodes. Nothing is ever resized."""

import io
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract.errors import ScenarioError
from contract.multimodal import ImageLayout
from contract.progress import Progress, silent
from generator.multimodal.parquet_images import StoredImage, parquet_files, stored_images

SIZES_LISTED = 12


@dataclass(frozen=True)
class Decoded:
    """What an image file says of itself. `format` as Pillow names it."""

    width: int
    height: int
    format: str
    mime_type: str


@dataclass
class Search:
    """What has been looked at on the way to the image."""

    files_found: int = 0
    files_read: int = 0
    files_without_images: list[str] = field(default_factory=list)
    images: int = 0
    undecodable: int = 0
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)

    def document(self) -> dict[str, Any]:
        return {
            "files_found": self.files_found,
            "files_read": self.files_read,
            "files_without_image_columns": self.files_without_images,
            "images_looked_at": self.images,
            "images_undecodable": self.undecodable,
        }


@dataclass(frozen=True)
class ChosenImage:
    stored: StoredImage
    decoded: Decoded
    search: Search


def decode(content: bytes, wanted: Callable[[int, int], bool]) -> Decoded | None:
    """Size and format of an image file; None when it is broken.

    The size is in its first bytes. Pixels are decoded only where the size is wanted.
    """
    from PIL import Image  # here: to validate data without images takes no Pillow

    try:
        with warnings.catch_warnings():
            # A huge image is not the one that is looked for; it is not decoded either.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content)) as image:
                decoded = Decoded(
                    image.width, image.height, str(image.format), str(Image.MIME.get(image.format or ""))
                )
                if wanted(decoded.width, decoded.height):
                    image.load()
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError):
        # What Pillow's readers raise on bad data: UnidentifiedImageError is an OSError, PNG's is a SyntaxError.
        return None
    return decoded


def choose_image(folder: Path, layout: ImageLayout, progress: Progress = silent) -> ChosenImage:
    """The first image of the layout's size, in the order of preference of the files.

    Raises ScenarioError: no files, no image columns, or no image that fits (with the sizes that were seen).
    """
    files = parquet_files(folder)
    search = Search(files_found=len(files))

    def fits(width: int, height: int) -> bool:
        return (width, height) == (layout.width, layout.height)

    for file in files:
        progress("Look for the image", search.files_read, len(files))
        before = search.images
        for stored in stored_images(file):
            search.images += 1
            decoded = decode(stored.content, fits)
            if decoded is None or decoded.mime_type == "None":
                search.undecodable += 1
                continue
            search.sizes[decoded.width, decoded.height] += 1
            if fits(decoded.width, decoded.height):
                search.files_read += 1
                return ChosenImage(stored, decoded, search)
        search.files_read += 1
        if search.images == before:
            search.files_without_images.append(str(file.relative_to(folder)))
    raise ScenarioError(_not_found(folder, layout, search))


def _not_found(folder: Path, layout: ImageLayout, search: Search) -> str:
    wanted = f"multimodal.mmmu_parquet_dir: {folder} has no image of {layout.width}x{layout.height}"
    if not search.images:
        return (
            f"{wanted}: its {search.files_found} Parquet files have no columns image_1 ... of a struct with bytes and "
            "path, or they are empty; use MMMU's own files"
        )
    seen = ", ".join(
        f"{width}x{height} ({count})" for (width, height), count in search.sizes.most_common(SIZES_LISTED)
    )
    more = len(search.sizes) - SIZES_LISTED
    return (
        f"{wanted}: {search.images} images in {search.files_found} files, {search.undecodable} undecodable; sizes seen: "
        f"{seen or 'none'}{f' and {more} more' if more > 0 else ''}; add the other Parquet files of MMMU"
    )
