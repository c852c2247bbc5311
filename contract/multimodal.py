"""Multimodal data: rows that refer to one image, which is stored once (reference 6.2 and 6.3).

A row of `<run_id>.<scenario>.requests.jsonl` names the image by its reference; the manifest holds it as a data URL. The
two are put together when a request is sent, and not before.
"""

import base64
import binascii
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from contract.documents import canonical_sha256, file_sha256
from contract.errors import ArtifactError
from contract.manifest import Manifest
from contract.progress import Progress, silent
from contract.rows import read_rows

if TYPE_CHECKING:
    from contract.scenario import Scenario

ImageScenario = Literal["single_1080p", "multi_720p_5"]


@dataclass(frozen=True)
class ImageLayout:
    """Native size in pixels, and how often the image stands in one request."""

    width: int
    height: int
    images_per_request: int


LAYOUTS: dict[str, ImageLayout] = {
    "single_1080p": ImageLayout(1920, 1080, 1),
    "multi_720p_5": ImageLayout(1280, 720, 5),
}
"""Image scenario -> what its requests look like."""

ROW_KEYS = ("request_id", "question", "answer", "image_refs", "prompt", "text_tokens", "max_out_len")
"""Keys of a row, in the order in which they are stored."""


def image_row(
    position: int, text: str, *, ref: str, images: int, text_tokens: int, output_tokens: int
) -> dict[str, Any]:
    """One row: images first, then the text; `base64_ref` stands where the data URL is going to be."""
    content: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"base64_ref": ref}} for _ in range(images)
    ]
    content.append({"type": "text", "text": text})
    values = (
        f"request-{position:08d}",
        text,
        "none",
        [ref] * images,
        [{"role": "user", "content": content}],
        text_tokens,
        output_tokens,
    )
    return dict(zip(ROW_KEYS, values, strict=True))


@dataclass(frozen=True)
class ImageDataset:
    """The one dataset of a multimodal manifest: its rows' file and its image. `document` is the manifest's entry."""

    name: str
    requests: Path
    document: dict[str, Any]

    @property
    def images_per_request(self) -> int:
        return int(self.document["image_count_per_request"])

    @property
    def ref(self) -> str:
        return str(self.document["image"]["ref"])

    @property
    def data_url(self) -> str:
        return str(self.document["image"]["data_url"])

    def image_bytes(self) -> bytes:
        """The image file as it lay in the Parquet file. Raises ArtifactError when the data URL does not hold it."""
        image = self.document["image"]
        head, _, encoded = self.data_url.partition(",")
        try:
            content = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ArtifactError(
                f"{self.name}: the stored image is not Base64 ({error}); run prepare again"
            ) from error
        if head != f"data:{image['mime_type']};base64" or len(content) != image["byte_length"]:
            raise ArtifactError(
                f"{self.name}: the stored image is not the {image['byte_length']} bytes of {image['mime_type']} that the "
                "manifest describes; run prepare again"
            )
        if hashlib.sha256(content).hexdigest() != image["sha256"]:
            raise ArtifactError(f"{self.name}: the stored image has another SHA-256; run prepare again")
        return content


def image_dataset(manifest: Manifest) -> ImageDataset:
    """The dataset of a multimodal manifest; its rows lie beside the manifest, wherever that has been copied to."""
    ((name, document),) = manifest.document["datasets"].items()
    return ImageDataset(name, manifest.directory.result / document["name"], document)


def check_image_artifacts(manifest: Manifest, progress: Progress = silent) -> None:
    """Raises ArtifactError when rows, references or image are not as they were written."""
    dataset = image_dataset(manifest)
    dataset.image_bytes()
    path, count = dataset.requests, 0
    if not path.is_file():
        raise ArtifactError(f"{path}: is missing; restore it or run prepare again")
    document = manifest.document
    for row in read_rows(path):
        place = f"{path}:{count + 1}"
        if tuple(row) != ROW_KEYS:
            raise ArtifactError(f"{place}: its keys must be {', '.join(ROW_KEYS)} in this order")
        expected = image_row(
            count,
            row["question"],
            ref=dataset.ref,
            images=dataset.images_per_request,
            text_tokens=document["text_tokens"],
            output_tokens=document["output_tokens"],
        )
        for key in ROW_KEYS:
            if row[key] != expected[key]:
                raise ArtifactError(f"{place}: {key} is not what the manifest describes")
        count += 1
        progress("Validate rows", count, manifest.request_count)
    if count != manifest.request_count:
        raise ArtifactError(f"{path}: has {count} rows; {manifest.request_count} were written")
    token_ids = document["artifacts"]["token_ids"]
    for file, sha256 in (
        (path, dataset.document["sha256"]),
        (manifest.directory.result / token_ids["name"], token_ids["sha256"]),
    ):
        if not file.is_file():
            raise ArtifactError(f"{file}: is missing; restore it or run prepare again")
        if file_sha256(file) != sha256:
            raise ArtifactError(
                f"{file}: differs from what prepare wrote (SHA-256 {sha256[:12]}... expected); "
                "restore it or run prepare again"
            )


def parquet_listing(folder: Path) -> list[list[str | int]]:
    """Name (seen from `folder`) and size of every Parquet file below it: what tells one set of images from another.

    Their content is not read: it is gigabytes, and the one image that is used is in the manifest.
    """
    return sorted([str(file.relative_to(folder)), file.stat().st_size] for file in folder.rglob("*.parquet"))


def image_data_sha256(
    scenario: "Scenario",
    *,
    corpus_sha256: str,
    tokenizer_fingerprint: str,
    parquet_files: list[list[str | int]],
) -> str:
    """As `contract.data_identity.data_sha256`, of multimodal data."""
    return canonical_sha256(
        {
            "mode": "mm",
            "random_seed": scenario.run.random_seed,
            "tokenizer": tokenizer_fingerprint,
            "corpus": {
                "sha256": corpus_sha256,
                "field": scenario.corpus.field,
                "selection": scenario.corpus.selection.model_dump(mode="json"),
            },
            "count": scenario.requests.count,
            "text_tokens": scenario.requests.input_length.value,
            "output_tokens": scenario.requests.output_length.value,
            "scenario": scenario.multimodal.scenarios[0],
            "parquet_files": parquet_files,
        }
    )
