"""The only place that imports `lmcache`: one module per range of versions that share an interface."""

import os
import warnings
from importlib import import_module, metadata
from types import ModuleType

from contract.errors import ServiceError

# What each module was written for and tried with, from (inclusive) to (exclusive).
SUPPORTED: tuple[tuple[tuple[int, int, int], tuple[int, int, int], str], ...] = (
    ((0, 5, 6), (0, 5, 7), "tiers.lmcache_api.v0_5_6"),
)

QUIET = {
    # The server and the client report their use to LMCache's makers unless told not to.
    "LMCACHE_TRACK_USAGE": "false",
    "DO_NOT_TRACK": "1",
    "LMCACHE_DISABLE_BANNER": "1",
    "LMCACHE_LOG_LEVEL": "CRITICAL",
    "HF_HUB_OFFLINE": "1",
}


def installed_version() -> str | None:
    """Version of the `lmcache` package beside us; None where there is none."""
    try:
        return metadata.version("lmcache")
    except metadata.PackageNotFoundError:
        return None


def module_name(version: str) -> str:
    """The adapter module for a version of LMCache. Raises ServiceError for one that is not known."""
    parts = version.split("+")[0].split(".")
    numbers = tuple(int(part) for part in parts[:3] if part.isdecimal())
    if len(parts) == 3 and len(numbers) == 3:
        for first, end, name in SUPPORTED:
            if first <= numbers < end:
                return name
    known = ", ".join(f"{'.'.join(map(str, first))}" for first, _, _ in SUPPORTED)
    raise ServiceError(
        f"lmcache {version} is not known here: its interface changes between patch releases; install {known}"
    )


def load() -> ModuleType:
    """The adapter module for the installed LMCache, with telemetry off.

    Raises ServiceError: LMCache is not installed, or of a version that is not known.
    """
    version = installed_version()
    if version is None:
        raise ServiceError(
            "lmcache is not installed beside this Python; make tiers builds an environment with it"
        )
    name = module_name(version)
    # Packages that adapters import have opinions on the age of this Python.
    warnings.filterwarnings("ignore", category=FutureWarning)
    for variable, value in QUIET.items():
        os.environ.setdefault(variable, value)
    return import_module(name)
