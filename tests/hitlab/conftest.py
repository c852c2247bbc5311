"""Running commands as a user does, against simulated engines."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

from contract.renderer import Renderer, Spec
from contract.run_directory import RunDirectory
from generator.prepare import prepare
from hitlab.main import main
from prompts.corpus import BUILTIN_WORD_PROBLEMS, Corpus, EncodedCorpus, load_corpus
from prompts.seeds import find_safe_tokens
from prompts.tokenizer import BUILTIN_DEMO, Tokenizer, load_tokenizer
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


@pytest.fixture(scope="session")
def pictures() -> dict[str, str]:
    """A picture per kind of chart, see `kind_of`."""
    return {}


@pytest.fixture(autouse=True)
def each_kind_of_chart_is_drawn_once(pictures: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Flow tests ask whether pages are drawn, not what is on a picture: pages of processes and tests of `analyzer` do.

    The renderer draws every kind of chart that comes, once; a second of that kind gets the same picture.
    """
    draw = Renderer.draw

    def draw_new(self: Renderer, charts: Sequence[Spec]) -> list[str]:
        kinds = [json.dumps(kind_of(chart), sort_keys=True) for chart in charts]
        new = {kind: chart for kind, chart in zip(kinds, charts, strict=True) if kind not in pictures}
        if new:
            pictures.update(zip(new, draw(self, list(new.values())), strict=True))
        return [pictures[kind] for kind in kinds]

    monkeypatch.setattr(Renderer, "draw", draw_new)


def kind_of(value: Any, *, data: bool = False) -> Any:
    """What a chart's spec has besides its numbers: fields, marks, titles, which numbers are zero, negative or no numbers.

    Rows and other lists count once per kind of their elements, texts within `data` by their type alone.
    """
    if isinstance(value, dict):
        return {key: kind_of(part, data=data or key == "values") for key, part in value.items()}
    if isinstance(value, list):
        kinds = sorted({json.dumps(kind_of(part, data=data), sort_keys=True) for part in value})
        return [
            *kinds,
            *(["all equal"] if len(value) > 1 and all(part == value[0] for part in value) else []),
        ]
    if isinstance(value, str):
        return "text" if data else value
    if isinstance(value, bool) or value is None:
        return value
    if not isfinite(value):
        return str(value)
    return f"number {(value > 0) - (value < 0)}"


@pytest.fixture(scope="session", autouse=True)
def built_in_data_is_read_once() -> Iterator[None]:
    """Commands in this process share what each would find anew: the built-in corpus, the demo tokenizer's safe tokens.

    Their own tests are in `tests/prompts`; other corpora and tokenizers, and processes, do without this short cut.
    """
    read_once = cache(load_corpus)
    safe: dict[tuple[int, int], tuple[int, ...]] = {}

    def read(path: str | Path, field: str) -> Corpus:
        return (read_once if str(path) == BUILTIN_WORD_PROBLEMS else load_corpus)(path, field)

    def find(tokenizer: Tokenizer, corpus: EncodedCorpus, wanted: int, enough: int) -> list[int]:
        if (tokenizer.path, corpus.corpus.path) != (BUILTIN_DEMO, BUILTIN_WORD_PROBLEMS):
            return find_safe_tokens(tokenizer, corpus, wanted, enough)
        if (wanted, enough) not in safe:
            safe[wanted, enough] = tuple(find_safe_tokens(tokenizer, corpus, wanted, enough))
        return list(safe[wanted, enough])

    with pytest.MonkeyPatch.context() as patch:
        for module in ("generator.sources", "runner.prepared"):
            patch.setattr(f"{module}.load_corpus", read)
        patch.setattr("prompts.prompt_set.find_safe_tokens", find)
        yield


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
