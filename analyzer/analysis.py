"""An analysis as it is kept, and how it ends."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.documents import read_document, sealed
from contract.errors import ArtifactError, ExitCode

SEAL = "analysis_sha256"


def seal_analysis(document: dict[str, Any]) -> dict[str, Any]:
    return sealed(document, SEAL)


def read_analysis(path: Path) -> dict[str, Any]:
    """The analysis of a measurement. Raises ArtifactError when it is not as `analyze` wrote it."""
    document = read_document(path, "analysis")
    if document.get(SEAL) != seal_analysis(document)[SEAL]:
        raise ArtifactError(
            f"{path}: is not what analyze wrote; run hitlab analyze --measurement {path.parent.name} again"
        )
    return document


@dataclass(frozen=True)
class Analysis:
    """The document, where it is, and how the command ends."""

    document: dict[str, Any]
    path: Path
    exit_code: ExitCode
    message: str | None


Show = Callable[[Analysis], None]
"""Shows a result. It is called before report.html is drawn: whatever happens there, the result is out."""


def show_nothing(_: Analysis) -> None:
    """For those who look at what is returned."""
