"""The real AISBench, in its own environment, against simulated engines and a real vLLM with two ranks.

Where AISBench cannot be had at all (no disk, no package) the tests skip with the reason; under `CI=true` they fail.

They run in two processes: AISBench takes its time to start, on one core. The tests of the real engine are kept in one of
the two, so that it is started once; a test that compares times is `alone` on the machine while it runs.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract.run_directory import MeasurementDirectory, RunDirectory
from environments.aisbench import ensure_environment
from environments.cached import NotAvailableError
from tests.real.conftest import qwen_directory, start_engine, vllm_engine, vllm_python

__all__ = ["qwen_directory", "start_engine", "vllm_engine", "vllm_python"]

HITLAB = Path(sys.executable).with_name("hitlab")
LONGEST_RUN_SECONDS = 300


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: compares times; no other test runs meanwhile")
    config.addinivalue_line("markers", "xdist_group(name): of pytest-xdist, which may be switched off")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "vllm_engine" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("real engine"))


@pytest.fixture(autouse=True)
def turn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Waits until no `alone` test runs; an `alone` test until no other one does."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "turn.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if request.node.get_closest_marker("alone") else fcntl.LOCK_SH)
        yield


@pytest.fixture(scope="session")
def aisbench_python() -> Path:
    """The python that HITLAB_AISBENCH_PYTHON names, else that of an environment built for these tests."""
    named = os.environ.get("HITLAB_AISBENCH_PYTHON")
    if named:
        return Path(named)
    try:
        return ensure_environment()
    except NotAvailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no AISBench: {error}", pytrace=False)
        pytest.skip(f"no AISBench: {error}")


@dataclass(frozen=True)
class Run:
    """How `hitlab run` ended, and what it left."""

    code: int
    out: str
    err: str
    directory: RunDirectory
    measured: MeasurementDirectory

    @property
    def measurement(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.measured.measurement.read_text())
        return document

    @property
    def analysis(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.directory.analysis.read_text())
        return document


class Job:
    """A scenario file, prepared; it may be run several times."""

    def __init__(
        self, folder: Path, document: dict[str, Any], environment: dict[str, str], mode: str = "text"
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "scenario.json"
        self.path.write_text(json.dumps(document))
        self._environment = environment
        printed = self._call("prepare", "--scenario", str(self.path), "--mode", mode)
        assert printed.returncode == 0, printed.stderr
        self.directory = RunDirectory.of_manifest(Path(json.loads(printed.stdout)["manifest"]))

    def run(self, *options: str, meanwhile: "Callable[[subprocess.Popen[str]], None] | None" = None) -> Run:
        """`meanwhile` gets the running command, and returns when it has done what it is there for."""
        before = set(self.directory.runs.glob("*")) if self.directory.runs.is_dir() else set()
        command = [HITLAB, "run", "--scenario", str(self.path), *options]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
            cwd=self.path.parent,
        ) as running:
            if meanwhile is not None:
                meanwhile(running)
            try:
                out, err = running.communicate(timeout=LONGEST_RUN_SECONDS)
            except subprocess.TimeoutExpired:
                running.send_signal(signal.SIGTERM)
                out, err = running.communicate()
                pytest.fail(f"hitlab run did not end within {LONGEST_RUN_SECONDS} s\n{err}")
        (measured,) = set(self.directory.runs.glob("*")) - before
        return Run(running.returncode, out, err, self.directory, MeasurementDirectory(measured))

    def _call(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [HITLAB, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=self._environment,
            cwd=self.path.parent,
        )


MakeJob = Callable[..., Job]


@pytest.fixture
def make_job(aisbench_python: Path, tmp_path: Path) -> MakeJob:
    """Prepares scenarios in a folder of this test, whose name holds a space."""
    environment = {**os.environ, "HITLAB_AISBENCH_PYTHON": str(aisbench_python)}

    def make(document: dict[str, Any], name: str = "a job", mode: str = "text", **variables: str) -> Job:
        return Job(tmp_path / name, document, {**environment, **variables}, mode)

    return make
