"""One run at a time on an engine, whatever it is called and wherever its runs write to.

What is locked is the address and port that a URL leads to. Two lock files each are held for the length of a run: one in
the user's runtime (else state) directory, which all runs of a user on a machine share, and one on the volume that holds
the artifacts, which machines and containers may share.
"""

import fcntl
import hashlib
import ipaddress
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from contract.errors import ArtifactError, ServiceError
from contract.events import utc_now
from runner.engines.engine import Engine

FOLDER = ".hitlab-locks"
LOOPBACK = "loopback"
PORTS = {"http": 80, "https": 443}


@contextmanager
def engine_lock(engine: Engine, artifacts: Path, run_id: str) -> Iterator[None]:
    """Hold the engine for the length of the block: where its requests go, and where its counters are read.

    The kernel gives the locks back when their holder dies, so there are no stale ones.

    Raises:
        ServiceError: another run holds it; says which.
        ArtifactError: a lock file cannot be written.
    """
    names = lock_names((engine.inference_url, *engine.metrics_urls))
    holder = {
        "run_id": run_id,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "engine": engine.base_url,
        "since": utc_now(),
    }
    with ExitStack() as held:
        # All take them in one order, so of two that start together one gets them all.
        for folder in (user_folder(), artifacts / FOLDER):
            for name in names:
                held.enter_context(_lock(folder, name, holder))
        yield


def lock_names(urls: Iterable[str]) -> list[str]:
    """Names of the places that `urls` lead to, each once, in a fixed order."""
    places = {place for url in urls for place in _places(url)}
    return sorted(hashlib.sha256(place.encode()).hexdigest()[:16] for place in places)


def _places(url: str) -> set[str]:
    """`address port` of everything that the name in `url` stands for; its own text where it stands for nothing."""
    parts = urlsplit(url)
    host, port = (parts.hostname or "").rstrip("."), parts.port or PORTS.get(parts.scheme, 0)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return {f"{host} {port}"}  # nobody can connect to it either
    return {f"{_address(str(entry[4][0]))} {port}" for entry in found}


def _address(text: str) -> str:
    """One spelling for each address, and one for all that lead to this machine itself."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return LOOPBACK if address.is_loopback or address.is_unspecified or _is_ours(address) else str(address)


def _is_ours(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an interface of this machine has the address: only then can a socket be bound to it."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def user_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where this user's locks are on this machine; made where it is missing.

    The runtime directory (also where no session has set the variable, as in cron), else the state directory, else, as in
    a container that may write nowhere else, the one for temporary files. Raises ArtifactError: none can be written.
    """
    user = os.getuid()
    state = environment.get("XDG_STATE_HOME") or Path(
        environment.get("HOME") or "/nonexistent", ".local/state"
    )
    bases = (
        Path(environment.get("XDG_RUNTIME_DIR") or f"/run/user/{user}", "hitlab"),
        Path(state, "hitlab"),
        Path(tempfile.gettempdir(), f"hitlab-{user}"),
    )
    for base in bases:
        folder = base / "locks"
        # A runtime directory is made by the system, or it is not there. In a container it belongs to another user and our
        # folder in it is mounted from the host.
        if base == bases[0] and not base.is_dir() and not os.access(base.parent, os.W_OK):
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            continue
        if folder.stat().st_uid == user and os.access(folder, os.W_OK):
            return folder
    raise ArtifactError(
        f"none of {', '.join(str(base) for base in bases)} can be written, and the lock of the engine goes there; set "
        "XDG_STATE_HOME to a folder of yours"
    )


@contextmanager
def _lock(folder: Path, name: str, holder: Mapping[str, object]) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ArtifactError(
            f"{folder}: cannot be written ({error.strerror}); change run.output_dir"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServiceError(
                f"{holder['engine']}: {_holder(descriptor)}; wait for its end, or stop it"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, orjson.dumps(holder), 0)
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    try:
        holder = orjson.loads(os.pread(descriptor, 4096, 0))
        return (
            f"run {holder['run_id']} (process {holder['pid']} on {holder['host']}) has used {holder['engine']} since "
            f"{holder['since']}"
        )
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "another HitLab run is using it"
