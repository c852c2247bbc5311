"""`validate`: are the artifacts still what prepare wrote?"""

from pathlib import Path
from typing import Any

from contract.artifact_check import check_artifacts
from contract.command_log import command_log
from contract.manifest import read_prepared_manifest
from contract.multimodal import image_dataset
from contract.progress import Progress, silent
from contract.redaction import Redactor
from generator.multimodal.image_check import check_image


def validate(manifest_path: Path, progress: Progress = silent) -> dict[str, Any]:
    """Check seal, hashes, rows and their agreement. Raises ArtifactError that names the first difference."""
    manifest = read_prepared_manifest(manifest_path)
    with command_log(manifest.directory.log("validate"), Redactor(), needed=False) as log:
        check_artifacts(manifest, progress)
        if manifest.mode == "mm":
            check_image(image_dataset(manifest))
        log.info("%s: %d rows agree with the manifest", manifest_path, manifest.request_count)
    return {
        "ok": True,
        "rows": manifest.request_count,
        "run_id": manifest.document["run_id"],
    }
