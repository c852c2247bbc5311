"""Where AISBench is. It pins old packages, so it lives in an environment of its own and is only ever a process."""

import os
from pathlib import Path

from contract.errors import DriverError

PYTHON_VARIABLE = "HITLAB_AISBENCH_PYTHON"


def cache_directory() -> Path:
    """Where `make aisbench` builds; `current` leads to the environment in use."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hitlab" / "aisbench"


def aisbench_python() -> Path:
    """The interpreter of the environment: HITLAB_AISBENCH_PYTHON, else what `make aisbench` built.

    Raises DriverError: there is none.
    """
    named = os.environ.get(PYTHON_VARIABLE)
    python = Path(named) if named else cache_directory() / "current" / "bin" / "python"
    if python.is_file() and os.access(python, os.X_OK):
        # Not resolved: a virtual environment is found by the path of its python.
        return python.absolute()
    where = (
        f"{PYTHON_VARIABLE} names {python}, which is no program"
        if named
        else f"it is not in {python.parents[1]}"
    )
    raise DriverError(
        f"AISBench is not installed: {where}; run make aisbench, or take the native driver (--driver native)"
    )
