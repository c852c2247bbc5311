"""AISBench's results of exactly one run: found, copied beside the measurement, and held against what we saw."""

import json
import shutil
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from contract.documents import writing
from contract.errors import DriverError
from contract.run_directory import STAMP_FORMAT

SUFFIXES = (".csv", ".json")


def new_results_folder(work_dir: Path, now: datetime) -> Path:
    """A folder for one run in AISBench's way, `<work_dir>/<stamp>`; runs that share a work_dir never share one."""
    moment = now
    while True:
        folder = work_dir / moment.strftime(STAMP_FORMAT)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
        except FileExistsError as error:
            if not work_dir.is_dir():
                raise DriverError(f"{work_dir}: is not a directory; change aisbench.work_dir") from error
            moment += timedelta(seconds=1)
            continue
        except OSError as error:
            raise DriverError(
                f"{folder}: cannot be created ({error.strerror}); change aisbench.work_dir"
            ) from error
        return folder


@dataclass(frozen=True)
class Results:
    """AISBench's tables, as copied, and how many requests it calls failed."""

    csv: Path
    summary: Path
    total: int
    failed: int


def collect(folder: Path, *, model_abbr: str, dataset_abbr: str, into: Path) -> Results:
    """Copy the tables of the run in `folder`.

    Raises DriverError: one is missing or says nothing of its requests.
    """
    copies = []
    for suffix in SUFFIXES:
        source = folder / "performances" / model_abbr / f"{dataset_abbr}{suffix}"
        if not source.is_file():
            raise DriverError(f"AISBench has left no {source}; its log says why")
        target = into / f"performance{suffix}"
        with writing(target):
            shutil.copyfile(source, target)
        copies.append(target)
    try:
        document = json.loads(copies[1].read_text(encoding="utf-8"))
        total, failed = (int(document[name]["total"]) for name in ("Total Requests", "Failed Requests"))
    except (ValueError, KeyError, TypeError) as error:
        raise DriverError(f"{copies[1]}: not AISBench's summary ({error!r})") from error
    return Results(copies[0], copies[1], total, failed)
