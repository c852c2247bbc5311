"""Running a bench where LMCache is: here, or in the environment that `make tiers` built."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from contract.errors import ServiceError
from tiers.lmcache_api import installed_version

VARIABLE = "HITLAB_TIERS_PYTHON"

# Our code is appended: the environment's own packages come first, and it has none of our names.
START = "import sys; sys.path.append(sys.argv.pop(1)); from hitlab.main import main; main()"


def environment_python() -> Path:
    """Where `make tiers` puts its environment's python, unless HITLAB_TIERS_PYTHON names another."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "hitlab" / "tiers" / "current" / "bin" / "python"


def ensure_lmcache(arguments: list[str]) -> None:
    """Return where LMCache is importable; else replace this process by the same command in its environment.

    Raises ServiceError where there is no such environment.
    """
    if installed_version() is not None:
        return
    python = environment_python()
    if not python.exists():
        raise ServiceError(
            "this bench needs LMCache, which has an environment of its own: run make tiers once, or use the image "
            "hitlab-tiers"
        )
    if Path(sys.prefix).resolve() == python.parents[1].resolve():
        raise ServiceError(f"{python.parents[1]} holds no LMCache: remove it and run make tiers")
    _replace(python, arguments)


def _replace(python: Path, arguments: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    root = Path(__file__).resolve().parents[1]
    os.execv(python, [str(python), "-P", "-c", START, str(root), *arguments])  # noqa: S606 - no shell is wanted
