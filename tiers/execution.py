"""Running a bench where LMCache is: here, or in the environment that `make tiers` built."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from contract.errors import ServiceError
from tiers.environment import existing_python
from tiers.lmcache_api import installed_version

# Our code is appended: the environment's own packages come first, ours have no others of their names.
START = "import sys; sys.path.append(sys.argv.pop(1)); from hitlab.main import main; main()"


def ensure_lmcache(arguments: list[str]) -> None:
    """Return where LMCache is importable; else replace this process by the same command in its environment.

    Raises ServiceError where there is no such environment.
    """
    if installed_version() is not None:
        return
    python = existing_python()
    if python is None:
        raise ServiceError(
            "this bench needs LMCache, which has an environment of its own: run make tiers once, or use the image "
            "hitlab-tiers"
        )
    _replace(python, arguments)


def _replace(python: Path, arguments: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    root = Path(__file__).resolve().parents[1]
    os.execv(python, [str(python), "-P", "-c", START, str(root), *arguments])  # noqa: S606 - no shell is wanted
