"""Which run directory `prepare` works in: the one that inspect left, the one to rebuild, or a new one."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from contract.documents import writing
from contract.errors import ArtifactError
from contract.events import has_writer
from contract.kinds import Mode
from contract.manifest import Manifest, read_manifest
from contract.run_directory import RunDirectory, create_run_directory, existing_run_directories
from contract.scenario import Scenario


@dataclass(frozen=True)
class Choice:
    """The directory to write to, and what the user should know about why it is this one."""

    directory: RunDirectory
    note: str | None = None


def directory_for_prepare(
    scenario: Scenario,
    *,
    scenario_sha256: str,
    data_sha256: str,
    overwrite: bool,
    discard_measurements: bool = False,
    mode: Mode = "text",
) -> Choice:
    """The directory that inspect made for this very scenario file, when nothing newer was made from it; else, with
    `overwrite`, the newest that holds this very data; else a new one.

    One that holds measurements is rebuilt only with `discard_measurements`, which deletes them: without them its data
    is only the same again, and with other data they could never be reported.

    Raises:
        ArtifactError: a directory cannot be made, or a measurement that is to be deleted is still being made.
    """
    output_dir, run_id = Path(scenario.run.output_dir), scenario.run.run_id
    manifests = [manifest for manifest in _readable(output_dir, run_id) if manifest.mode == mode]
    of_scenario = [
        manifest for manifest in manifests if manifest.document.get("scenario_sha256") == scenario_sha256
    ]
    if of_scenario and of_scenario[0].status == "inspected":
        return Choice(of_scenario[0].directory)
    same_data = [manifest for manifest in manifests if manifest.document.get("data_sha256") == data_sha256]
    if not overwrite or not same_data:
        return Choice(create_run_directory(output_dir, run_id))
    directory = same_data[0].directory
    measured = len(directory.measurements())
    if measured and not discard_measurements:
        kept = create_run_directory(output_dir, run_id)
        return Choice(
            kept,
            f"{directory.root} holds {measured} measurement{'' if measured == 1 else 's'} and stays as it is; the data "
            f"is written to {kept.root} (--overwrite --discard-measurements would rebuild and delete)",
        )
    _discard(directory)
    return Choice(directory)


def _discard(directory: RunDirectory) -> None:
    for measurement in directory.measurements():
        if measurement.events.is_file() and has_writer(measurement.events):
            raise ArtifactError(
                f"{measurement.root}: is being measured; wait for its end, or leave out --discard-measurements"
            )
    with writing(directory.runs):
        if directory.runs.exists():
            shutil.rmtree(directory.runs)


def _readable(output_dir: Path, run_id: str) -> list[Manifest]:
    """Manifests of this task, newest first. A damaged one is nothing to build on and is passed over."""
    manifests = []
    for directory in existing_run_directories(output_dir, run_id):
        try:
            manifests.append(read_manifest(directory.manifest))
        except ArtifactError:
            continue
    return manifests
