"""Taking engines away from Prometheus some time after their run (see contract.file_sd)."""

import logging
import time
from collections.abc import Collection
from pathlib import Path

from contract.errors import ArtifactError
from contract.file_sd import TARGETS, read_measurements, remove_target

LOGGER = logging.getLogger("hitlab.watch")

FORGOTTEN_SECONDS = 24 * 3600.0
"""A target whose run is nowhere to be seen is removed after so long."""


def remove_old_targets(
    artifacts: Path, over: Collection[tuple[str, str]], known: Collection[tuple[str, str]]
) -> None:
    """Remove the files all of whose runs are over, and those of runs that were deleted long ago.

    Args:
        over: (run_id, measurement) of runs that have been over for long enough.
        known: all that there are.
    """
    for path in sorted((artifacts / TARGETS).glob("*.json")):
        try:
            before = path.stat()
            runs = read_measurements(path)
            if not runs <= set(over) and (
                runs & set(known) or time.time() - before.st_mtime < FORGOTTEN_SECONDS
            ):
                continue
            # A run that begins now replaces the file, and its file must stay.
            if path.stat().st_ino == before.st_ino:
                remove_target(path)
        except (OSError, ArtifactError) as error:
            LOGGER.warning("%s", error)
