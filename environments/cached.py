"""A virtual environment under `${XDG_CACHE_HOME:-~/.cache}/hitlab`, built where it is missing.

An environment belongs to what it is made from (its key); when that changes a new one is built, and those that nobody uses
are removed.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO


class NotAvailableError(Exception):
    """The environment cannot be had on this machine. One line: why, and what would help."""


def cache_directory() -> Path:
    """Where large things live that every checkout shares."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hitlab"


def base_python() -> str:
    """The interpreter behind the virtual environment we may be running in (that one can be deleted any time)."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def key_of(files: Sequence[Path]) -> str:
    """A key for an environment made from these files, by this Python on this machine."""
    identity = hashlib.sha256()
    for file in files:
        identity.update(file.read_bytes())
    identity.update(f"{platform.python_version()} {platform.machine()} {base_python()}".encode())
    return identity.hexdigest()[:16]


@dataclass(frozen=True)
class CachedEnvironment:
    """`name` is the folder and what messages begin with; `needed_bytes` are free while it is being built."""

    name: str
    needed_bytes: int
    what: str

    @property
    def home(self) -> Path:
        return cache_directory() / self.name

    def say(self, text: str) -> None:
        print(f"[{self.name}] {text}", file=sys.stderr, flush=True)

    def ensure(
        self, key: str, build: Callable[[Path], None], finish: Callable[[Path], None] = lambda _: None
    ) -> Path:
        """Path of the environment's python. `build` gets it in an empty environment where there is none yet.

        `finish` gets it every time, under the same lock. Raises NotAvailableError.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        environment = self.home / key
        # An environment cannot be moved once its scripts name their interpreter: it is built in place, and the marker
        # written last tells a whole one from what an interrupted build left.
        marker = environment / "complete"
        python = environment / "bin" / "python"
        with self._locked():
            if not marker.exists():
                for other in self.home.iterdir():
                    if other.is_dir() and not other.is_symlink() and not _in_use(other):
                        shutil.rmtree(other)
                self._require_disk()
                started = time.monotonic()
                self.say(f"building {self.what} in {environment}")
                self.run(
                    [base_python(), "-m", "venv", str(environment)], "no virtual environment can be made"
                )
                build(python)
                marker.write_text(f"built in {time.monotonic() - started:.0f} s\n", encoding="utf-8")
                self.say(f"environment ready after {time.monotonic() - started:.0f} s: {environment}")
            finish(python)
            self._lead_to(environment)
        return python

    def _lead_to(self, environment: Path) -> None:
        """`current` is the environment in use, for those who look for it without knowing what it is made from."""
        current = self.home / "current"
        if not current.is_symlink() or current.readlink() != environment:
            current.unlink(missing_ok=True)
            current.symlink_to(environment)

    def run(self, command: list[str], failure: str) -> None:
        """Run a command; when it fails, raise `failure` with the last line of what it said."""
        result = subprocess.run(  # noqa: S603 - our own commands
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            said = [line for line in (result.stdout + result.stderr).splitlines() if line.strip()]
            raise NotAvailableError(
                f"{failure} ({said[-1].strip() if said else f'exit code {result.returncode}'})"
            )

    def _require_disk(self) -> None:
        free = shutil.disk_usage(self.home).free
        if free < self.needed_bytes:
            raise NotAvailableError(
                f"{self.home} has {free / 1e9:.1f} GB free, the environment needs {self.needed_bytes / 1e9:.0f} GB: free "
                "some space, or point XDG_CACHE_HOME at a larger disk"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.home / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.say("waiting for another process that builds the environment")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def install_command(python: Path) -> list[str]:
    """pip, without dependencies (pins are complete) and without a cache (the environment itself is what is kept)."""
    return [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-input", "--no-deps"]


def pinned(requirements: Path) -> str:
    """`name==version` of the one package that a file pins."""
    return next(word for word in requirements.read_text(encoding="utf-8").split() if "==" in word)


def torch_index() -> list[str]:
    """pip's option for the index that carries the CPU build of torch, where yours does not: TORCH_INDEX."""
    index = os.environ.get("TORCH_INDEX")
    return ["--index-url", index] if index else []


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
