"""The tiers' own Python environment: LMCache beside a CPU build of torch, built once and cached outside the checkout.

    python -m tiers.environment      build it where needed, print the path of its python

It holds every package that HitLab and LMCache need, but not HitLab itself: a command that runs there takes the very
code that it was started from. The cache is `${XDG_CACHE_HOME:-~/.cache}/hitlab/tiers`; an environment belongs to its
pins, the Python version and the machine's architecture. Standard library only: this runs before anything is installed.
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

from contract.errors import ServiceError

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
TORCH_PIN = REQUIREMENTS / "torch-cpu.txt"
PINS = (REQUIREMENTS / "tiers.txt", REQUIREMENTS / "lmcache.txt")

# Measured: the environment takes 1.5 GB, the wheels being unpacked another half for a while.
NEEDED_BYTES = 3 * 10**9


def home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hitlab" / "tiers"


def existing_python() -> Path | None:
    """The environment's python where `make tiers` has built it for these pins, else None."""
    if not all(pins.exists() for pins in (TORCH_PIN, *PINS)):
        return None
    environment = home() / _key()
    return environment / "bin" / "python" if (environment / "complete").exists() else None


def ensure() -> Path:
    """The environment's python; builds the environment first where it is missing or its pins changed.

    Raises ServiceError: no CPU build of torch, too little disk, or a package that cannot be installed.
    """
    home().mkdir(parents=True, exist_ok=True)
    environment = home() / _key()
    # An environment cannot be moved once its scripts name their interpreter: it is built in place, and the marker
    # written last tells a whole one from what an interrupted build left.
    marker = environment / "complete"
    with _locked(home() / "lock"):
        if not marker.exists():
            shutil.rmtree(environment, ignore_errors=True)
            _require_disk()
            begin = time.monotonic()
            _build(environment)
            marker.touch()
            _say(f"environment ready after {time.monotonic() - begin:.0f} s: {environment}")
    return environment / "bin" / "python"


def _key() -> str:
    identity = hashlib.sha256()
    for pins in (TORCH_PIN, *PINS):
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


def _require_disk() -> None:
    free = shutil.disk_usage(home()).free
    if free < NEEDED_BYTES:
        raise ServiceError(
            f"{home()} has {free / 1e9:.1f} GB free, the tiers' environment needs {NEEDED_BYTES / 1e9:.0f} GB: free "
            "some space, or point XDG_CACHE_HOME at a larger disk"
        )


def _build(environment: Path) -> None:
    _say(f"building the environment of LMCache (1.5 GB, some minutes) in {environment}")
    _run([_base_python(), "-m", "venv", str(environment)], "no virtual environment can be made")
    install = [
        str(environment / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-cache-dir",
        "--no-input",
    ]
    # Every list is complete; what LMCache asks for beyond them is for GPUs and clouds.
    install.append("--no-deps")
    torch = TORCH_PIN.read_text(encoding="utf-8").split()[-1]
    index = os.environ.get("TORCH_INDEX")
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
    for pins in PINS:
        _say(f"installing {pins.name}")
        _run([*install, "--require-hashes", "-r", str(pins)], f"{pins.name} cannot be installed")


def _run(command: list[str], failure: str) -> None:
    """Run a command; when it fails, raise `failure` with the last line of what it said."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ServiceError(f"{failure} ({said[-1].strip() if said else f'exit code {done.returncode}'})")


def _say(text: str) -> None:
    print(f"[tiers] {text}", file=sys.stderr, flush=True)


def main() -> int:
    try:
        print(ensure())
    except ServiceError as error:
        _say(f"not available: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
