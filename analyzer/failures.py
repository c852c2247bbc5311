"""What went wrong with requests, in one line: how often, how, and which field decides it."""

from collections.abc import Sequence
from dataclasses import dataclass

from analyzer.request_table import record_batches
from contract.run_directory import MeasurementDirectory

FIELDS = {"timeout": "driver.timeout_seconds"}
"""Kind of error -> the field of a scenario that sets it."""


@dataclass(frozen=True)
class Failures:
    """Attempts that failed in the same way; `text` is what the first of them said."""

    kind: str
    attempts: int
    text: str | None

    def line(self) -> str:
        parts = [self.text, FIELDS.get(self.kind)]
        return f"{self.attempts} x {self.kind}: " + "; ".join(part for part in parts if part)


def failures_by_kind(directory: MeasurementDirectory) -> list[Failures]:
    """Every kind, the most frequent first. Raises ArtifactError: there are no records."""
    found: dict[str, Failures] = {}
    for batch in record_batches(directory, ["error_kind", "error_text"]):
        failed = batch.filter(batch.column("error_kind").is_valid())
        for kind, text in zip(*(failed.column(name).to_pylist() for name in range(2)), strict=True):
            known = found.get(kind)
            found[kind] = Failures(kind, 1 + (known.attempts if known else 0), known.text if known else text)
    return sorted(found.values(), key=lambda failures: (-failures.attempts, failures.kind))


def told(failures: Sequence[Failures]) -> str:
    """All of them in a line; "" when there are none."""
    return ", ".join(item.line() for item in failures)
