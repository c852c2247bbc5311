"""A Docker engine for tests/stack. `make test-stack` provides one, and the images; here it is only asked for."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = os.environ["COMPOSE_PROJECT_NAME"] = "hitlab-test"  # not the stack of whoever runs the tests
STACK = f"com.docker.compose.project={PROJECT}"
MANAGED = "com.hitlab.managed=true"
KINDS = {
    "container": ["docker", "ps", "--all", "--quiet"],
    "volume": ["docker", "volume", "ls", "--quiet"],
    "network": ["docker", "network", "ls", "--quiet"],
}


def left_in_docker(*labels: str) -> dict[str, list[str]]:
    """Containers, volumes and networks with one of these labels; kinds without any are not there."""
    found = {
        kind: sorted(
            {line for label in labels for line in output(*command, "--filter", f"label={label}").split()}
        )
        for kind, command in KINDS.items()
    }
    return {kind: names for kind, names in found.items() if names}


def output(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def empty_docker() -> Iterator[None]:
    """Docker without anything of the tests' own project, whose names others may have taken."""
    checked = subprocess.run([REPOSITORY / "docker/check"], capture_output=True, text=True, check=False)
    if checked.returncode:
        reason = checked.stderr.splitlines()[0]
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    if found := left_in_docker(STACK):
        pytest.fail(f"a stack of HitLab is there already (make down removes it): {found}")
    yield
    output("docker", "compose", "--project-directory", REPOSITORY, "--profile", "*", "down", "--volumes")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder whose parents everybody may pass, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="hitlab-stack-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
