"""Whether the files of a measurement are the ones that its run wrote."""

from pathlib import Path

from contract.errors import ArtifactError
from contract.measurement import Measurement
from contract.parts import hash_of_part, part_paths
from contract.run_directory import MeasurementDirectory


def part_problem(measurement: Measurement, path: Path) -> str | None:
    """Why `path` is not that part of the measurement; None where it is, or there is and was none.

    Of a measurement that names no parts (HitLab 0.1) nothing is known, so there is no problem either.
    """
    if measurement.parts is None:
        return None
    expected = measurement.parts.get(path.name)
    if not path.is_file():
        return None if expected is None else "is missing; the run wrote it"
    if expected is None:
        return "is none of this measurement's files"
    if hash_of_part(path) != expected:
        return f"is not what the run wrote (SHA-256 {expected[:12]}... expected): damaged, or of another measurement"
    return None


def require_parts(directory: MeasurementDirectory, measurement: Measurement) -> None:
    """Raises ArtifactError where a file that the result is made of is not this measurement's.

    Samples of the KV cache are looked at by who shows them: the hit rate does not need them.
    """
    passed_over = {directory.kv_samples, directory.kv_samples_stream}
    listed = {directory.root / name for name in measurement.parts or {}}
    for one, other in (
        (directory.requests, directory.requests_stream),
        (directory.requests_stream, directory.requests),
    ):
        # The same records twice: a recovery was cut short before it named the one, or before it removed the other.
        if one in listed and other not in listed:
            passed_over.add(other)
    for path in sorted(listed.union(part_paths(directory)) - passed_over):
        problem = part_problem(measurement, path)
        if problem is not None:
            raise ArtifactError(f"{path}: {problem}; restore it or measure again")
