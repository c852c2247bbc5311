"""The files that a measurement is made of beside measurement.json, and the hashes that tie them to it."""

from collections.abc import Mapping
from pathlib import Path

from contract.bench import ANSWERS
from contract.documents import file_sha256, reading
from contract.run_directory import MeasurementDirectory

_SUFFIXES = {".prom", ".parquet", ".arrows"}


def part_paths(directory: MeasurementDirectory) -> list[Path]:
    """The parts that are there, by name: scrapes, records, samples, the answers that a bench scores.

    Logs, events, the driver's own results and whatever the analyzer writes are none: no figure is made of them.
    """
    return sorted(
        path
        for path in directory.root.iterdir()
        if (path.suffix in _SUFFIXES or path.name == ANSWERS)
        and not path.name.startswith(".")
        and path.is_file()
    )


def part_hashes(directory: MeasurementDirectory, known: Mapping[str, str]) -> dict[str, str]:
    """Name -> SHA-256 of every part: what is `known` as it is, and the others that are there."""
    return dict(known) | {
        path.name: hash_of_part(path) for path in part_paths(directory) if path.name not in known
    }


def hash_of_part(path: Path) -> str:
    with reading(path):
        return file_sha256(path)
