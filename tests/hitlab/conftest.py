"""Running commands as a user does, against simulated engines."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract.run_directory import RunDirectory
from generator.prepare import prepare
from hitlab.main import main
from prompts.tokenizer import Tokenizer, load_tokenizer
from simulator.config import SimulatorConfig
from simulator.process import start_simulator
from tests.misbehaving_server import MisbehavingServer, misbehaving_server

REPOSITORY = Path(__file__).resolve().parents[2]

BLOCK_SIZE = 16
API_KEY = "canary-key-51c2"


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


Hitlab = Callable[..., Ended]


@pytest.fixture
def hitlab(capsys: pytest.CaptureFixture[str]) -> Hitlab:
    def run(*arguments: str | Path) -> Ended:
        with pytest.raises(SystemExit) as ending:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Ended(int(ending.value.code or 0), printed.out, printed.err)

    return run


@pytest.fixture(scope="session")
def engine_url() -> Iterator[str]:
    """Two ranks, blocks of 16, the built-in tokenizer."""
    with start_simulator(SimulatorConfig(block_size=BLOCK_SIZE)) as simulator:
        yield simulator.url


@pytest.fixture(scope="session")
def locked_engine_url() -> Iterator[str]:
    """An engine that asks for a key."""
    config = SimulatorConfig.model_validate({"block_size": BLOCK_SIZE, "api_key": API_KEY})
    with start_simulator(config) as simulator:
        yield simulator.url


WriteScenario = Callable[..., Path]


def scenario_document(url: str, output_dir: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """A scenario for the engine at `url`; keyword arguments are merged into its sections."""
    document: dict[str, Any] = {
        "run": {"run_id": "job", "output_dir": str(output_dir)},
        "tokenizer": {"path": "builtin:demo", "block_size": BLOCK_SIZE},
        "corpus": {"path": "builtin:word-problems"},
        "requests": {
            "count": 30,
            "input_length": {"mode": "truncated_normal", "min": 64, "max": 400},
            "output_length": {"mode": "uniform", "min": 1, "max": 6},
        },
        "prefix_cache": {"target_hit_rate": 0.6, "groups": {"count": 3}},
        "service": {
            "inference_url": f"{url}/v1/completions",
            "metrics_url": f"{url}/metrics",
            "reset_url": f"{url}/reset_prefix_cache",
            "model": "demo",
            "dp_size": 2,
            "poll_interval_seconds": 0.05,
        },
        "driver": {"concurrency": 8},
    }
    for section, fields in sections.items():
        document[section] = document.get(section, {}) | fields
    return document


@pytest.fixture
def write_scenario(tmp_path: Path) -> WriteScenario:
    """Writes a `scenario_document` whose output goes to this test's folder."""

    def write(url: str, **sections: dict[str, Any]) -> Path:
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(scenario_document(url, tmp_path / "out", **sections)))
        return path

    return write


def prepared(hitlab: Hitlab, path: Path) -> RunDirectory:
    ended = hitlab("prepare", "--scenario", path, "--mode", "text")
    assert ended.code == 0, ended.err
    return RunDirectory.of_manifest(Path(json.loads(ended.out)["manifest"]))


REQUESTS = 24
SIZE = {"count": REQUESTS, "output_length": {"mode": "fixed", "value": 4}}
MODES: dict[str, dict[str, Any]] = {
    "warmup": {"requests": SIZE},
    "cold": {
        "requests": SIZE,
        "prefix_cache": {"mode": "cold", "target_hit_rate": 0.5, "groups": {"count": 2}},
    },
}


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer("builtin:demo", revision=None, trust_remote_code=False)


@pytest.fixture
def server(tokenizer: Tokenizer) -> Iterator[MisbehavingServer]:
    with misbehaving_server(SimulatorConfig(block_size=BLOCK_SIZE), tokenizer) as running:
        yield running


Job = Callable[..., RunDirectory]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Prepared once per mode: a run directory may be copied."""
    roots = {}
    for mode, sections in MODES.items():
        folder = tmp_path_factory.mktemp(mode)
        scenario = folder / "scenario.json"
        scenario.write_text(json.dumps(scenario_document("http://127.0.0.1:9", folder / "out", **sections)))
        manifest = Path(prepare(scenario, overwrite=False, output_dir=None)["manifest"])
        roots[mode] = manifest.parent.parent
    return roots


@pytest.fixture
def job(
    server: MisbehavingServer, write_scenario: WriteScenario, data: dict[str, Path], tmp_path: Path
) -> Job:
    """Writes a scenario for the server, with its prepared data."""

    def write(mode: str = "warmup", **sections: dict[str, Any]) -> RunDirectory:
        sections["driver"] = {"concurrency": 4, "timeout_seconds": 10.0} | sections.get("driver", {})
        write_scenario(server.url, **sections, **MODES[mode])
        root = shutil.copytree(data[mode], tmp_path / data[mode].name)
        return RunDirectory.of_manifest(next(root.glob("result/*.manifest.json")))

    return write


def errors(ended: Ended) -> list[str]:
    return [line for line in ended.err.splitlines() if line.startswith("ERROR: ")]


def document(path: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def start_command(*arguments: str | Path, before: str = "", **options: Any) -> subprocess.Popen[str]:
    """A command in a process of its own; `before` is run in it first."""
    return subprocess.Popen(
        [sys.executable, "-c", f"{before}\nfrom hitlab.main import main; main()", *map(str, arguments)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def end_of(process: subprocess.Popen[str], timeout_seconds: float = 30.0) -> Ended:
    try:
        out, err = process.communicate(timeout=timeout_seconds)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return Ended(process.returncode, out, err)
