"""One run at a time on an engine."""

import fcntl
import multiprocessing
import os
import socket
from pathlib import Path

import pytest

from contract.errors import ArtifactError, ServiceError
from runner.engines.engine import Engine
from runner.lock import engine_lock, lock_names, user_folder


def engine(url: str, *metrics: str) -> Engine:
    return Engine("external", f"{url}/v1/completions", metrics or (f"{url}/metrics",), None, "m", 1)


RESOLVED = {
    "localhost": ["::1", "127.0.0.1"],
    "127.0.0.1": ["127.0.0.1"],
    "127.0.1.1": ["127.0.1.1"],
    "0.0.0.0": ["0.0.0.0"],
    "::1": ["::1"],
    "::ffff:127.0.0.1": ["::ffff:127.0.0.1"],
    "fe80::1%eth0": ["fe80::1%2"],
    "gpu-host": ["192.0.2.7"],
    "gpu-host.example": ["192.0.2.7", "2001:db8::7"],
    "2001:DB8:0::7": ["2001:db8::7"],
    "192.0.2.7": ["192.0.2.7"],
    "192.0.2.8": ["192.0.2.8"],
}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that needs no network."""

    def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if host.lower() not in {name.lower() for name in RESOLVED}:
            raise socket.gaierror(f"no {host}")
        found = next(value for name, value in RESOLVED.items() if name.lower() == host.lower())
        return [(0, 0, 0, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def held_together(one: Engine, other: Engine, folder: Path) -> bool:
    """Whether runs that write to folders of their own can have both engines at once."""
    with engine_lock(one, folder / "a", "one"):
        try:
            with engine_lock(other, folder / "b", "other"):
                return True
        except ServiceError:
            return False


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://localhost:8000", "http://127.0.0.1:8000"),
        ("http://localhost:8000", "http://[::1]:8000"),
        ("http://LOCALHOST:8000", "http://0.0.0.0:8000"),
        ("http://127.0.1.1:8000", "http://[::ffff:127.0.0.1]:8000"),
        ("http://gpu-host:8000", "http://192.0.2.7:8000/prefix"),
        ("http://gpu-host:8000", "http://GPU-host.example:8000"),
        ("http://[2001:DB8:0::7]:8000", "http://gpu-host.example.:8000"),
        ("http://192.0.2.7", "http://192.0.2.7:80"),
        ("https://192.0.2.7", "https://192.0.2.7:443"),
        ("http://nowhere.example:8000", "http://NOWHERE.example:8000"),
    ],
)
def test_one_engine_under_two_names_and_for_two_folders(one: str, other: str, tmp_path: Path) -> None:
    assert not held_together(engine(one), engine(other), tmp_path)
    assert not held_together(engine(other), engine(one), tmp_path)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://localhost:8000", "http://localhost:8001"),
        ("http://192.0.2.7:8000", "http://192.0.2.8:8000"),
        ("http://192.0.2.7", "https://192.0.2.7"),
        ("http://nowhere.example:8000", "http://elsewhere.example:8000"),
    ],
)
def test_two_engines(one: str, other: str, tmp_path: Path) -> None:
    assert held_together(engine(one), engine(other), tmp_path)


def test_two_addresses_with_the_same_counters_are_one_engine(tmp_path: Path) -> None:
    direct, router = "http://192.0.2.7:8000", "http://192.0.2.8:80"
    assert not held_together(engine(direct), engine(router, f"{direct}/metrics"), tmp_path)


def test_an_address_of_this_machine_is_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.lock._is_ours", lambda address: str(address) == "192.0.2.7")
    assert lock_names(["http://gpu-host:8000"]) == lock_names(["http://localhost:8000"])
    assert lock_names(["http://192.0.2.8:8000"]) != lock_names(["http://localhost:8000"])


def test_both_locks_are_taken(tmp_path: Path, runtime_directory: Path) -> None:
    (name,) = lock_names(["http://192.0.2.8:8000"])
    with engine_lock(engine("http://192.0.2.8:8000"), tmp_path, "one"):
        for folder in (runtime_directory / "hitlab" / "locks", tmp_path / ".hitlab-locks"):
            with (folder / f"{name}.lock").open() as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_volume_of_the_artifacts_locks_alone_where_users_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine("http://192.0.2.8:8000")
    with engine_lock(one, tmp_path, "first"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        with pytest.raises(ServiceError, match="run first"):
            engine_lock(one, tmp_path, "second").__enter__()


def test_the_users_folder_is_the_runtime_directory_else_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    nowhere = str(tmp_path / "file" / "x")
    (tmp_path / "file").write_text("")
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path)}
    assert user_folder(runtime) == tmp_path / "run" / "hitlab" / "locks"
    assert user_folder({"XDG_RUNTIME_DIR": nowhere, "HOME": str(tmp_path)}) == (
        tmp_path / ".local" / "state" / "hitlab" / "locks"
    )
    assert user_folder(
        {"XDG_RUNTIME_DIR": nowhere, "XDG_STATE_HOME": str(tmp_path / "s"), "HOME": nowhere}
    ) == (tmp_path / "s" / "hitlab" / "locks")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "run"))
    neither = {"XDG_RUNTIME_DIR": nowhere, "HOME": nowhere}
    assert user_folder(neither) == tmp_path / "run" / f"hitlab-{os.getuid()}" / "locks"
    monkeypatch.setattr("tempfile.tempdir", nowhere)
    with pytest.raises(ArtifactError, match="XDG_STATE_HOME"):
        user_folder(neither)


def test_a_folder_that_is_mounted_into_a_runtime_directory_of_others_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container: Docker makes /run/user/1000 for root, and mounts the host's hitlab folder into it."""
    runtime, access = tmp_path / "run", os.access
    (runtime / "hitlab").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != runtime and access(path, mode))
    assert user_folder({"XDG_RUNTIME_DIR": str(runtime), "HOME": str(tmp_path)}) == (
        runtime / "hitlab" / "locks"
    )


def test_the_second_comer_is_told_who_holds_it(tmp_path: Path) -> None:
    with engine_lock(engine("http://a:1"), tmp_path, "first"):
        with pytest.raises(ServiceError, match=r"run first .* has used http://a:1 since"):
            engine_lock(engine("http://a:1"), tmp_path, "second").__enter__()
        with engine_lock(engine("http://b:1"), tmp_path, "other engine"):
            pass
    with engine_lock(engine("http://a:1"), tmp_path, "third"):
        pass


def _hold_and_die(folder: Path) -> None:
    engine_lock(engine("http://a:1"), folder, "dead").__enter__()
    os._exit(9)


def test_a_dead_holder_holds_nothing(tmp_path: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=_hold_and_die, args=(tmp_path,))
    child.start()
    child.join()
    with engine_lock(engine("http://a:1"), tmp_path, "next"):
        pass


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match=r"change run.output_dir"):
        engine_lock(engine("http://a:1"), tmp_path / "file", "x").__enter__()
