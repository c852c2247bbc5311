"""The environment of the benches below the engine: LMCache beside a CPU build of torch.

    python -m environments.tiers      build it where needed, print the path of its python

`${XDG_CACHE_HOME:-~/.cache}/hitlab/tiers/current` leads to it; that is where HitLab looks. It holds every package that
HitLab and LMCache need, but not HitLab itself: a command that goes on there takes along the code it was started from.
"""

import platform
import sys
from pathlib import Path

from environments.cached import (
    CachedEnvironment,
    NotAvailableError,
    install_command,
    key_of,
    pinned,
    torch_index,
)

REQUIREMENTS = Path(__file__).parents[1] / "requirements"
TORCH_PIN = REQUIREMENTS / "torch-cpu.txt"
PINS = (REQUIREMENTS / "tiers.txt", REQUIREMENTS / "lmcache.txt")

# Measured: 1.6 GB, the wheels being unpacked another half for a while.
ENVIRONMENT = CachedEnvironment(
    name="tiers", needed_bytes=3 * 10**9, what="the environment of LMCache (1.6 GB, some minutes)"
)


def ensure_environment() -> Path:
    """Path of the environment's python, built where needed.

    Raises NotAvailableError: no CPU build of torch, too little disk, or a package that cannot be installed.
    """
    return ENVIRONMENT.ensure(key_of([TORCH_PIN, *PINS]), _install)


def _install(python: Path) -> None:
    install = install_command(python)
    torch = pinned(TORCH_PIN)
    ENVIRONMENT.say(f"installing {torch}")
    ENVIRONMENT.run(
        [*install, *torch_index(), "--require-hashes", "--only-binary", ":all:", "-r", str(TORCH_PIN)],
        f"no CPU build of torch ({torch}) for Python {platform.python_version()} can be found: set TORCH_INDEX to an "
        "index that carries it (PyTorch has one for CPU builds), or PIP_FIND_LINKS to a folder with its wheel",
    )
    for pins in PINS:
        ENVIRONMENT.say(f"installing {pins.name}")
        ENVIRONMENT.run([*install, "--require-hashes", "-r", str(pins)], f"{pins.name} cannot be installed")


def main() -> int:
    try:
        print(ensure_environment())
    except NotAvailableError as error:
        ENVIRONMENT.say(f"not available: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
