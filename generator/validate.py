"""`validate`: are the artifacts still what prepare wrote?"""

from pathlib import Path
from typing import Any

from contract.artifact_check import check_artifacts
from contract.command_log import PhaseTimes, command_log, log_lines
from contract.manifest import Manifest, read_prepared_manifest
from contract.multimodal import image_dataset
from contract.progress import Progress, silent
from contract.redaction import Redactor
from generator.multimodal.image_check import check_image
from generator.plan_log import artifact_lines


def validate(manifest_path: Path, progress: Progress = silent) -> dict[str, Any]:
    """Check seal, hashes, rows and their agreement. Raises ArtifactError that names the first difference."""
    manifest = read_prepared_manifest(manifest_path)
    with command_log(manifest.directory.log("validate"), Redactor(), needed=False) as log:
        phase = PhaseTimes()
        phase.tell(log)
        log.info("manifest %s: %s, %s, its seal is right", manifest_path, manifest.mode, manifest.status)
        with phase("rows, their order and hashes"):
            check_artifacts(manifest, progress)
        log_lines(log, artifact_lines(checked_artifacts(manifest)))
        if manifest.mode == "mm":
            with phase("image"):
                check_image(image_dataset(manifest))
        log.info("valid: %d rows agree with the manifest", manifest.request_count)
    return {
        "ok": True,
        "rows": manifest.request_count,
        "run_id": manifest.document["run_id"],
    }


def checked_artifacts(manifest: Manifest) -> dict[str, Any]:
    """The entries of the files that `check_artifacts` reads; the analysis changes with every run and is none of them."""
    artifacts = {**manifest.document.get("datasets", {}), **manifest.document["artifacts"]}
    return {name: entry for name, entry in artifacts.items() if name != "analysis"}
