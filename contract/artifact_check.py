"""Do the request files agree with each other and with the manifest? Reads every byte, keeps one row in memory."""

from itertools import zip_longest
from pathlib import Path

from contract.documents import file_sha256
from contract.errors import ArtifactError
from contract.manifest import Manifest
from contract.multimodal import check_image_artifacts
from contract.progress import Progress, silent
from contract.rows import FULL_KEYS, read_rows, request_keys


def check_artifacts(manifest: Manifest, progress: Progress = silent) -> None:
    """Raises ArtifactError when a file of the data, or an image in its manifest, is not as it was written."""
    if manifest.mode == "mm":
        check_image_artifacts(manifest, progress)
        return
    for path in artifact_paths(manifest).values():
        if not path.is_file():
            raise ArtifactError(f"{path}: is missing; restore it or run prepare again")
    check_rows(manifest, progress)
    for name, path in artifact_paths(manifest).items():
        artifact = manifest.document["artifacts"][name]
        if file_sha256(path) != artifact["sha256"]:
            raise ArtifactError(
                f"{path}: differs from what prepare wrote (SHA-256 {artifact['sha256'][:12]}... expected); "
                "restore it or run prepare again"
            )


def artifact_paths(manifest: Manifest) -> dict[str, Path]:
    """Where the artifacts lie now: beside the manifest, by name, so that a copied directory still validates."""
    artifacts = manifest.document["artifacts"]
    return {
        name: manifest.directory.result / artifacts[name]["name"]
        for name in ("full", "requests", "token_ids")
    }


def check_rows(manifest: Manifest, progress: Progress) -> None:
    paths = artifact_paths(manifest)
    full_path, requests_path = paths["full"], paths["requests"]
    keys = request_keys(manifest.effective_config["output"]["output_key"])
    count = 0
    for full, request in zip_longest(read_rows(full_path), read_rows(requests_path)):
        line = count + 1
        if count == manifest.request_count:
            longer = requests_path if full is None else full_path
            raise ArtifactError(
                f"{longer}:{line}: {count} rows were written, this one has been added; restore it or run prepare again"
            )
        if full is None or request is None:
            short = full_path if full is None else requests_path
            raise ArtifactError(
                f"{short}: ends after {count} rows; {manifest.request_count} were written, so restore it or run "
                "prepare again"
            )
        if tuple(full) != FULL_KEYS:
            raise ArtifactError(f"{full_path}:{line}: its keys are not those of full.jsonl in their order")
        if full["sequence_index"] != count:
            raise ArtifactError(
                f"{full_path}:{line}: sequence_index is {full['sequence_index']}, {count} is next; rows were moved"
            )
        if tuple(request) != keys:
            raise ArtifactError(f"{requests_path}:{line}: its keys must be {', '.join(keys)} in this order")
        expected = {"question": full["question"], "answer": full["answer"]}
        expected |= dict.fromkeys(keys[2:], full["max_tokens"])
        for key in keys:
            if request[key] != expected[key]:
                raise ArtifactError(f"{requests_path}:{line}: {key} is not that of {full_path.name}:{line}")
        count += 1
        progress("Validate rows", count, manifest.request_count)
    if count != manifest.request_count:
        raise ArtifactError(
            f"{full_path} and {requests_path.name}: end after {count} rows; {manifest.request_count} were written, so "
            "restore them or run prepare again"
        )
