"""The artifact volume full, or not writable for the container's user: one line, exit code 3, nothing half-written."""

import os
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator

import docker
import pytest

from tests.stack.conftest import REPOSITORY, STACK, output
from tests.stack.test_compose import HITLAB_UID

RunOnVolume = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def prepare_on(empty_docker: None) -> Iterator[RunOnVolume]:
    """`hitlab prepare` of the demo in its container, on a volume in memory with these mount options."""
    client = docker.from_env()
    name = f"hitlab-test-{uuid.uuid4().hex[:8]}"
    image = client.images.get(os.environ.get("HITLAB_IMAGE", "hitlab"))
    volumes = []

    def run(options: str) -> subprocess.CompletedProcess[str]:
        volumes.append(
            client.volumes.create(
                name,
                driver_opts={"type": "tmpfs", "device": "tmpfs", "o": options},
                labels={"com.hitlab": "true"},
            )
        )
        scenarios = f"{REPOSITORY}/scenarios:/scenarios:ro"
        return subprocess.run(
            ["docker", "run", "--rm", "--read-only", "--tmpfs", "/tmp", "--volume", scenarios,  # noqa: S108
             "--volume", f"{name}:/artifacts", image.id, "prepare", "--scenario", "/scenarios/demo.yaml",
             "--mode", "text"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    yield run
    for volume in volumes:
        volume.remove()
    client.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (f"uid={HITLAB_UID},gid={HITLAB_UID},size=64k", "KiB free"),
        ("uid=0,gid=0,mode=0755,size=64m", "Permission denied"),
    ],
)
def test_one_line_with_the_place_and_the_reason(prepare_on: RunOnVolume, options: str, told: str) -> None:
    done = prepare_on(options)
    assert done.returncode == 3, done.stderr
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("ERROR: "))
    assert "/artifacts" in error
    assert told in error
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_told_before_anything_starts(empty_docker: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            ["make", "--silent", "-C", REPOSITORY, "up", f"PROMETHEUS_PORT={port}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert f"ERROR: PROMETHEUS_PORT: port {port} of 127.0.0.1 is taken" in done.stderr
    assert output("docker", "ps", "--all", "--quiet", "--filter", f"label={STACK}") == ""
