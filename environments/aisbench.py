"""AISBench's environment, with HitLab's plugin in it.

    python -m environments.aisbench       build it where needed, print the path of its python

`${XDG_CACHE_HOME:-~/.cache}/hitlab/aisbench/current` leads to it; that is where HitLab looks. AISBench needs torch to be
there and never computes with it, so the CPU build is taken where it can be had (`TORCH_INDEX` names an index that
carries it, `PIP_FIND_LINKS` a folder of wheels), else the one of your index, which is several gigabytes larger.
"""

import hashlib
import sys
import tempfile
from pathlib import Path
from shutil import copytree, ignore_patterns

from environments.cached import (
    CachedEnvironment,
    NotAvailableError,
    install_command,
    key_of,
    pinned,
    torch_index,
)

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / "aisbench_plugin"
TORCH_PIN = ROOT / "requirements" / "torch-cpu.txt"
PINS = ROOT / "requirements" / "aisbench.txt"

# Measured with the CPU build: 2.2 GB.
ENVIRONMENT = CachedEnvironment(
    name="aisbench", needed_bytes=4 * 10**9, what="AISBench's environment (2.2 GB, some minutes)"
)


def ensure_environment() -> Path:
    """Path of the environment's python, built or brought up to date where needed.

    Raises NotAvailableError: too little disk, or a package that cannot be installed.
    """
    return ENVIRONMENT.ensure(key_of([TORCH_PIN, PINS]), install_aisbench, install_plugin)


def install_aisbench(python: Path) -> None:
    install = install_command(python)
    cpu = pinned(TORCH_PIN)
    ENVIRONMENT.say(f"installing {cpu}")
    try:
        ENVIRONMENT.run(
            [*install, *torch_index(), "--require-hashes", "--only-binary", ":all:", "-r", str(TORCH_PIN)],
            f"no {cpu}",
        )
    except NotAvailableError as error:
        plain = cpu.partition("+")[0]
        ENVIRONMENT.say(
            f"{error}; installing {plain}, which is large (TORCH_INDEX names an index with the CPU build)"
        )
        with_dependencies = [word for word in install if word != "--no-deps"]
        ENVIRONMENT.run([*with_dependencies, plain], f"torch ({plain}) cannot be installed")
    ENVIRONMENT.say("installing AISBench")
    ENVIRONMENT.run([*install, "--require-hashes", "-r", str(PINS)], "AISBench cannot be installed")


def install_plugin(python: Path) -> None:
    """HitLab's plugin as it is now, copied: the environment works without the checkout, in an image for instance."""
    marker = python.parents[1] / "plugin"
    content = hashlib.sha256()
    for file in sorted(PLUGIN.rglob("*")):
        if file.suffix in (".py", ".toml"):
            content.update(str(file.relative_to(PLUGIN)).encode() + file.read_bytes())
    if marker.is_file() and marker.read_text(encoding="utf-8") == content.hexdigest():
        return
    ENVIRONMENT.say("installing HitLab's plugin")
    # From a copy: setuptools leaves its traces in the folder that it builds from.
    with tempfile.TemporaryDirectory() as folder:
        source = copytree(
            PLUGIN, Path(folder, "plugin"), ignore=ignore_patterns("__pycache__", "build", "*.egg-info")
        )
        install = [*install_command(python), "--no-build-isolation", "--force-reinstall", str(source)]
        ENVIRONMENT.run(install, "HitLab's plugin for AISBench cannot be installed")
    marker.write_text(content.hexdigest(), encoding="utf-8")


def main() -> int:
    try:
        print(ensure_environment())
    except NotAvailableError as error:
        ENVIRONMENT.say(f"not available: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
