"""How an analysis ends."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.errors import ExitCode


@dataclass(frozen=True)
class Analysis:
    """The document, where it is, and how the command ends."""

    document: dict[str, Any]
    path: Path
    exit_code: ExitCode
    message: str | None
