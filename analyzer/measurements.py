"""Finding one measurement of a run directory, and reading its record."""

import logging
from pathlib import Path

from contract.errors import ArtifactError
from contract.manifest import Manifest
from contract.measurement import Measurement
from contract.measurement_file import read_measurement_file
from contract.run_directory import MeasurementDirectory

LOGGER = logging.getLogger("hitlab.analyzer")


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


def latest_complete(manifest: Manifest, *, pass_over_damaged: bool = False) -> str | None:
    """The stamp of the newest measurement in which every request was answered; stamps sort by time.

    Raises ArtifactError where a newer one is damaged, unless it is to be passed over.
    """
    runs = manifest.directory.runs
    for root in sorted(runs.iterdir(), reverse=True) if runs.is_dir() else ():
        directory = MeasurementDirectory(root)
        if not directory.measurement.is_file():
            continue  # an offline pair of scrapes
        try:
            measurement = read_measurement(directory)
        except ArtifactError as error:
            if not pass_over_damaged:
                raise
            LOGGER.warning("passed over: %s", error)
            continue
        if measurement.status == "complete" and measurement.manifest_sha256 == manifest.sha256:
            return root.name
    return None
