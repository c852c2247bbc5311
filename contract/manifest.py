"""The manifest: what was prepared, from what, and the hashes that prove it is still the same."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.documents import document_text, parse_document, read_bytes, sealed
from contract.errors import ArtifactError
from contract.kinds import Mode, is_bench
from contract.run_directory import RunDirectory

SEAL = "manifest_sha256"


def seal(document: dict[str, Any]) -> dict[str, Any]:
    """`document` with `manifest_sha256`, the SHA-256 of its canonical form without that key."""
    return sealed(document, SEAL)


@dataclass(frozen=True)
class Manifest:
    """A manifest whose seal has been checked. `document` is the whole content."""

    directory: RunDirectory
    document: dict[str, Any]

    @property
    def status(self) -> str:
        return str(self.document["status"])

    @property
    def mode(self) -> Mode:
        """Kind of data; files of older versions are text."""
        mode: Mode = self.document.get("benchmark_mode", "text")
        return mode

    @property
    def sha256(self) -> str:
        return str(self.document[SEAL])

    @property
    def request_count(self) -> int:
        if self.mode == "mm":
            return int(self.document["request_count"])
        return int(self.document["requests"]["count"])

    @property
    def total_input_tokens(self) -> int:
        return int(self.document["requests"]["total_input_tokens"])

    @property
    def effective_config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.document["effective_config"]
        return config

    @property
    def warmup_plan(self) -> list[dict[str, Any]]:
        """The warmup requests in the order of sending: by group, then rank."""
        plan: list[dict[str, Any]] = self.document["warmup"]["plan"]
        return sorted(plan, key=lambda item: (int(item["group_id"].removeprefix("group-")), item["dp_rank"]))


def read_manifest(path: Path) -> Manifest:
    """The manifest in `path`. Raises ArtifactError when one byte of it is not as it was written."""
    directory = RunDirectory.of_manifest(path)
    content = read_bytes(path, "manifest")
    document = parse_document(content, path, "manifest")
    if document.get(SEAL) != seal(document)[SEAL] or document_text(document).encode() != content:
        raise ArtifactError(f"{path}: was changed after it was written; run prepare again")
    return Manifest(directory, document)


def read_prepared_manifest(path: Path) -> Manifest:
    """As `read_manifest`, and it must be of prepared data."""
    manifest = read_measured_manifest(path)
    if is_bench(manifest.document):
        raise ArtifactError(
            f"{path}: is that of a bench, which has no prepared data; hitlab analyze reads it (--manifest and "
            "--measurement STAMP)"
        )
    return manifest


def read_measured_manifest(path: Path) -> Manifest:
    """As `read_manifest`, and it must be of something that can be measured: prepared data, or a bench."""
    manifest = read_manifest(path)
    if manifest.status != "prepared":
        raise ArtifactError(
            f"{path}: holds the preview of inspect, no data; run hitlab prepare --mode {manifest.mode} with its scenario"
        )
    return manifest
