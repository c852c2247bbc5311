"""Finding one measurement of a run directory, and reading its record."""

from pathlib import Path

from contract.documents import read_document
from contract.errors import ArtifactError
from contract.manifest import Manifest
from contract.measurement import Measurement
from contract.measurement_file import read_measurement_file
from contract.run_directory import MeasurementDirectory


def find_measurement(manifest: Manifest, stamp: str) -> tuple[MeasurementDirectory, Measurement]:
    """The measurement `result/runs/<stamp>/`.

    Raises ArtifactError when there is none, it is damaged, or was made with another manifest.
    """
    runs = manifest.directory.runs
    directory = MeasurementDirectory(runs / stamp)
    if Path(stamp).name != stamp or not directory.measurement.is_file():
        known = ", ".join(sorted(path.name for path in runs.glob("*"))) or "none"
        raise ArtifactError(f"{runs}: has no measurement {stamp} (there: {known})")
    measurement = read_measurement(directory)
    if measurement.manifest_sha256 != manifest.sha256:
        raise ArtifactError(
            f"{directory.measurement}: was made with another manifest than {manifest.directory.manifest}"
        )
    return directory, measurement


def read_measurement(directory: MeasurementDirectory) -> Measurement:
    return read_measurement_file(directory.measurement, Measurement)


def latest_complete(manifest: Manifest) -> str | None:
    """The stamp of the newest measurement in which every request was answered; stamps sort by time."""
    runs = manifest.directory.runs
    for root in sorted(runs.iterdir(), reverse=True) if runs.is_dir() else ():
        directory = MeasurementDirectory(root)
        if not directory.measurement.is_file():
            continue  # an offline pair of scrapes
        document = read_document(directory.measurement, "measurement")
        if document.get("status") == "complete" and document.get("manifest_sha256") == manifest.sha256:
            return root.name
    return None
