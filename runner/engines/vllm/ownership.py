"""Whose container it is, and whether that run still lives: labels that name a lock, and the lock.

A run holds a lock file beside its artifacts for as long as its engine is in use. The kernel gives it back however the
run ends, so a container whose lock can be had belongs to nobody. A lock in a folder that cannot be seen from here
(another volume) is no evidence; then the process counts, where it ran on this host.
"""

import fcntl
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contract.documents import writing
from runner.engines.vllm.caches import USER_LABEL
from runner.lock import FOLDER

MANAGED = "com.hitlab.managed"
RUN = "com.hitlab.run"
CONFIGURATION = "com.hitlab.config"
KEEP = "com.hitlab.keep"
HOST = "com.hitlab.host"
PID = "com.hitlab.pid"
LOCK = "com.hitlab.lock"
LOCK_FOLDER = "com.hitlab.lock-folder"


@dataclass
class Claim:
    """A lock that is held until `release`. `descriptor` None: nothing to hold, the owner is known to be gone."""

    path: Path
    descriptor: int | None

    def release(self, *, remove: bool) -> None:
        """`remove`: the container is gone, so nobody will ask for the lock again."""
        if remove:
            self.path.unlink(missing_ok=True)
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def new_claim(artifacts: Path, name: str) -> Claim:
    """A lock of our own for the container `name`. Raises ArtifactError when the folder takes no file."""
    folder = artifacts / FOLDER
    path = folder / f"{name}.lock"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return Claim(path, descriptor)


def owner_labels(claim: Claim, *, run_id: str, configuration: str, keep: bool) -> dict[str, str]:
    return {
        MANAGED: "true",
        RUN: run_id,
        CONFIGURATION: configuration,
        KEEP: str(keep).lower(),
        USER_LABEL: str(os.getuid()),
        HOST: socket.gethostname(),
        PID: str(os.getpid()),
        LOCK: str(claim.path),
        LOCK_FOLDER: _identity(claim.path.parent),
    }


def claim_of(labels: Mapping[str, str]) -> Claim | None:
    """The claim on a container that nobody uses. None: its run lives, or nothing can be known about it."""
    path = Path(labels.get(LOCK, ""))
    if labels.get(LOCK) and path.parent.is_dir() and _identity(path.parent) == labels.get(LOCK_FOLDER):
        return _taken(path)
    if labels.get(HOST) == socket.gethostname() and not _alive(labels.get(PID, "")):
        return Claim(path, None)
    return None


def _taken(path: Path) -> Claim | None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return Claim(path, None)
    except OSError:
        return None  # another user's: he will find his own
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return Claim(path, descriptor)


def _identity(folder: Path) -> str:
    """Two volumes may be mounted at one path, at different times or in different containers."""
    status = folder.stat()
    return f"{status.st_dev}:{status.st_ino}"


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError, OverflowError):
        return True  # there, or not for us to say
    return True
