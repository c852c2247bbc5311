"""Which run directory a command works in: the one that inspect left, the one to rebuild, or a new one."""

from pathlib import Path

from contract.errors import ArtifactError
from contract.manifest import Manifest, read_manifest
from contract.run_directory import RunDirectory, create_run_directory, existing_run_directories
from contract.scenario import Scenario
from contract.scenario.rules import Mode


def directory_for_prepare(
    scenario: Scenario, scenario_sha256: str, *, overwrite: bool, mode: Mode = "text"
) -> RunDirectory:
    """With `overwrite` the newest prepared directory of this task and kind; else one that inspect made for this very
    scenario file; else a new one.
    """
    output_dir, run_id = Path(scenario.run.output_dir), scenario.run.run_id
    for manifest in _readable(output_dir, run_id):
        if manifest.mode != mode:
            continue
        if overwrite and manifest.status == "prepared":
            return manifest.directory
        if (
            not overwrite
            and manifest.status == "inspected"
            and manifest.document["scenario_sha256"] == scenario_sha256
        ):
            return manifest.directory
    return create_run_directory(output_dir, run_id)


def _readable(output_dir: Path, run_id: str) -> list[Manifest]:
    """Manifests of this task, newest first. A damaged one is nothing to build on and is passed over."""
    manifests = []
    for directory in existing_run_directories(output_dir, run_id):
        try:
            manifests.append(read_manifest(directory.manifest))
        except ArtifactError:
            continue
    return manifests
