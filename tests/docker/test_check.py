"""docker/check and docker/bench where Docker is missing, old or not running: one line, and what works without."""

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def run(
    script: str, folder: Path, docker: str | None, *arguments: str, **settings: str
) -> subprocess.CompletedProcess[str]:
    """`script` with `docker` (the text of a shell script) as the only docker there is; None: there is none."""
    for tool in ("bash", "env", "tail", "sed", "realpath", "dirname", "basename", "mkdir", "id", "readlink"):
        (folder / tool).symlink_to(
            next(p for p in (Path("/usr/bin") / tool, Path("/bin") / tool) if p.exists())
        )
    if docker is not None:
        (folder / "docker").write_text(f"#!/bin/bash\n{docker}\n")
        (folder / "docker").chmod(0o755)
    return subprocess.run(
        [REPOSITORY / script, *arguments],
        env={**os.environ, "PATH": str(folder), **settings},
        capture_output=True,
        text=True,
        check=False,
    )


def compose(version: str, engine: str = "exit 0") -> str:
    return f'case "$1" in compose) echo {version} ;; version) {engine} ;; esac'


@pytest.mark.parametrize("version", ["2.20.0", "2.26.1-4", "v2.39.2", "5.0.1"])
def test_an_engine_and_a_new_compose_are_enough(tmp_path: Path, version: str) -> None:
    assert run("docker/check", tmp_path, compose(version)).returncode == 0


@pytest.mark.parametrize(
    ("docker", "told"),
    [
        (None, "docker is not installed"),
        ("echo unknown command >&2; exit 1", "docker-compose v1 is too old"),
        (compose("1.29.2"), "Compose 1.29.2 is too old"),
        (compose("v2.4.1"), "Compose v2.4.1 is too old"),
        (compose("2.26.1", "echo Cannot connect to the daemon >&2; exit 1"), "Cannot connect to the daemon"),
    ],
)
def test_what_is_missing_is_one_line_with_a_way_out(tmp_path: Path, docker: str | None, told: str) -> None:
    checked = run("docker/check", tmp_path, docker)
    assert checked.returncode == 4
    error, way_out = checked.stderr.splitlines()
    assert error.startswith("ERROR: ")
    assert told in error
    assert way_out == "Without Docker: make demo"


def test_bench_says_so_too(tmp_path: Path) -> None:
    scenario = REPOSITORY / "examples/quickstart/quickstart.yaml"
    done = run("docker/bench", tmp_path, None, SCENARIO=str(scenario), ARTIFACTS_DIR=str(tmp_path))
    assert done.returncode == 4
    assert "make demo" in done.stderr
