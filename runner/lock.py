"""One run at a time on an engine: a lock per engine address, on the volume that holds the artifacts."""

import fcntl
import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from contract.errors import ArtifactError, ServiceError
from contract.events import utc_now
from runner.engines.engine import Engine

FOLDER = ".hitlab-locks"


@contextmanager
def engine_lock(engine: Engine, artifacts: Path, run_id: str) -> Iterator[None]:
    """Hold the engine for the length of the block. Raises ServiceError that says who holds it.

    The kernel gives the lock back when its holder dies, so there are no stale ones.
    """
    folder = artifacts / FOLDER
    name = hashlib.sha256(engine.base_url.encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise ArtifactError(
            f"{folder}: cannot be written ({error.strerror}); change run.output_dir"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServiceError(
                f"{engine.base_url}: {_holder(descriptor)}; wait for its end, or stop it"
            ) from error
        holder = {
            "run_id": run_id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "engine": engine.base_url,
            "since": utc_now(),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, orjson.dumps(holder), 0)
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    try:
        holder = orjson.loads(os.pread(descriptor, 4096, 0))
    except orjson.JSONDecodeError:
        return "another HitLab run is using it"
    return f"run {holder['run_id']} (process {holder['pid']} on {holder['host']}) is using it since {holder['since']}"
