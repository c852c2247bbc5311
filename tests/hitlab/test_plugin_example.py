"""The plugin's own example, all its fields and its section for images, as a user runs it: in a checkout of AISBench."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.scenario import load_scenario
from contract.scenario.model import PLUGIN_TEMPLATE
from runner.drivers.aisbench.job import template_of
from simulator.config import SimulatorConfig
from simulator.process import start_simulator
from tests.hitlab.conftest import Hitlab, errors
from tests.mmmu import FULL_HD, picture, write_mmmu

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with start_simulator(SimulatorConfig(multimodal=True, block_size=16)) as simulator:
        yield simulator.url


def example(base: str) -> dict[str, Any]:
    """Fields and values are the example's; its places and its size are ours."""
    return {
        "schema_version": "1.0",
        "run": {
            "run_id": "gsm8k-prefix-cache-60",
            "random_seed": 42,
            "output_dir": "./outputs/gsm8k-prefix-cache-60",
            "overwrite": False,
        },
        "tokenizer": {
            "path": "builtin:demo",
            "block_size": 16,
            "revision": None,
            "trust_remote_code": False,
        },
        "corpus": {
            "path": "builtin:word-problems",
            "field": "question",
            "selection": {"mode": "random"},
        },
        "requests": {
            "count": 12,
            "input_length": {"mode": "fixed", "value": 128},
            "output_length": {"mode": "fixed", "value": 4},
        },
        "output": {"output_key": None},
        "prefix_cache": {
            "mode": "warmup",
            "target_hit_rate": 0.6,
            "seed_blocks": 1,
            "minimum_non_shared_length": 16,
            "groups": {"count": 1, "assignment": {"mode": "uniform"}, "overrides": {}},
            "order": {"strategy": "interleave"},
        },
        "service": {
            "inference_url": f"{base}/v1/completions",
            "metrics_url": f"{base}/metrics",
            "reset_url": f"{base}/reset_prefix_cache",
            "model": "demo",
            "dp_size": 2,
            "assume_empty_cache": False,
            "engine_label_map": {},
            "timeout_seconds": 30,
            "api_key": "",
            "poll_interval_seconds": 5.0,
        },
        "validation": {"target_warning_pp": 1.0, "actual_warning_pp": 5.0},
        "aisbench": {
            "config": f"./{PLUGIN_TEMPLATE}",
            "work_dir": "./outputs/default",
            "extra_args": {"--num-warmups": 0},
            "dataset": {
                "abbr": None,
                "input_columns": ["question", "max_out_len"],
                "output_column": "answer",
                "prompt_template": "{question}",
                "pred_role": "BOT",
            },
            "model": {
                "abbr": None,
                "attr": "service",
                "stream": True,
                "max_out_len": 1,
                "retry": 2,
                "batch_size": 1,
                "generation_kwargs": {"temperature": 0, "ignore_eos": True},
            },
        },
        "multimodal": {"mmmu_parquet_dir": "../../../../MMMU", "scenarios": ["single_1080p"]},
    }


@pytest.fixture
def write(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Write:
    """In a checkout that holds the plugin's own template, which is also the current directory."""
    checkout = tmp_path / "users" / "me" / "checkouts" / "benchmark"
    (checkout / PLUGIN_TEMPLATE).parent.mkdir(parents=True)
    (checkout / PLUGIN_TEMPLATE).write_text("raise SystemExit('the old template')")
    monkeypatch.chdir(checkout)

    def scenario(**sections: dict[str, Any]) -> Path:
        document = example(url)
        for section, fields in sections.items():
            document[section] |= fields
        path = checkout / "scenario.json"
        path.write_text(json.dumps(document))
        return path

    return scenario


def run(hitlab: Hitlab, path: Path) -> dict[str, Any]:
    ended = hitlab("run", "--scenario", path, "--driver", "native")
    assert ended.code == 0, ended.err
    (analysis,) = path.parent.glob("outputs/*/result/*.analysis.json")
    document: dict[str, Any] = json.loads(analysis.read_text())
    return document


def test_as_a_run_of_texts(hitlab: Hitlab, write: Write) -> None:
    """Its images need not even be there."""
    path = write()
    assert template_of(load_scenario(path)) is None
    assert hitlab("inspect", "--scenario", path).code == 0
    assert hitlab("prepare", "--scenario", path, "--mode", "text").code == 0
    document = run(hitlab, path)
    assert document["validation"]["actual_status"] == "PASS"
    assert document["actual"]["global_hit_rate"] == document["theoretical_hit_rate"]


def test_as_a_run_of_images(hitlab: Hitlab, write: Write, url: str, tmp_path: Path) -> None:
    write_mmmu(tmp_path / "MMMU" / "test-0.parquet", [[picture(FULL_HD)]])
    path = write(service={"inference_url": f"{url}/v1/chat/completions"})
    assert template_of(load_scenario(path, "mm")) is None
    ended = hitlab("prepare", "--scenario", path, "--mode", "mm")
    assert ended.code == 0, ended.err
    document = run(hitlab, path)
    assert document["validation"]["actual_status"] == "PASS"
    assert document["actual"]["global_hits"] == document["expected"]["hit_tokens"]


def test_nothing_prepared(hitlab: Hitlab, write: Write, url: str) -> None:
    """The route says which kind is meant."""
    for address, mode in ((f"{url}/v1/completions", "text"), (f"{url}/v1/chat/completions", "mm")):
        ended = hitlab("run", "--scenario", write(service={"inference_url": address}))
        assert ended.code == 3
        assert ended.err.rstrip().endswith(f"--mode {mode}")


def test_two_scenarios_of_images(hitlab: Hitlab, write: Write) -> None:
    """They are nobody's business in a run of texts, and one too many for images."""
    path = write(multimodal={"scenarios": ["single_1080p", "multi_720p_5"]})
    for command in (("inspect",), ("prepare", "--mode", "text")):
        assert hitlab(*command, "--scenario", path).code == 0
    assert run(hitlab, path)["validation"]["actual_status"] == "PASS"
    for command in (("inspect", "--mode", "mm"), ("prepare", "--mode", "mm")):
        ended = hitlab(*command, "--scenario", path)
        assert ended.code == 2
        assert "multimodal.scenarios: has 2 entries; must have exactly one" in ended.err


def test_mistakes_of_one_reading_and_of_both(hitlab: Hitlab, write: Write) -> None:
    normal = {"mode": "truncated_normal", "min": 64, "max": 128}
    path = write(prefix_cache={"target_hit_rate": 2})
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 2
    assert [line.removeprefix(f"ERROR: {path}: ") for line in errors(ended)] == [
        "prefix_cache.target_hit_rate: found 2; must be <= 1"
    ]
    path = write(prefix_cache={"target_hit_rate": 2}, requests={"count": 4, "input_length": normal})
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 2
    lines = ended.err.splitlines()
    assert sum("(read as --mode text)" in line for line in lines) == 1
    assert sum("(read as --mode mm)" in line and "'fixed'" in line for line in lines) == 1


def test_a_template_of_the_users_is_for_texts(
    hitlab: Hitlab, write: Write, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images go without it, and that is said before AISBench is looked for."""
    write_mmmu(tmp_path / "MMMU" / "test-0.parquet", [[picture(FULL_HD)]])
    monkeypatch.setenv("HITLAB_AISBENCH_PYTHON", str(tmp_path / "none"))
    path = write(service={"inference_url": f"{url}/v1/chat/completions"}, aisbench={"config": "own.py"})
    assert hitlab("prepare", "--scenario", path, "--mode", "mm").code == 0
    ended = hitlab("run", "--scenario", path)
    assert f"aisbench.config: {path.parent / 'own.py'} is for texts; images are sent without it" in ended.err
    assert "no such file; leave it out" not in ended.err
