"""What AISBench is told, and that no secret is in it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contract.errors import DriverError, ScenarioError
from contract.manifest import Manifest
from contract.scenario import Scenario, parse_scenario
from prompts.tokenizer import load_tokenizer
from runner.drivers.aisbench.environment import aisbench_python
from runner.drivers.aisbench.job import aisbench_job, template_of
from runner.drivers.aisbench.load import tokenizer_folder
from runner.drivers.aisbench.process import child_environment
from runner.engines.engine import Engine

ENGINE = Engine("external", "http://127.0.0.1:1/v1/completions", (), None, "served", 2)
OLD_TEMPLATE = "./plugins/prefix_cache/config_examples/prefix_cache_perf.py"


def job(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    scenario = parse_scenario(document, folder=folder)
    directory = SimpleNamespace(
        run_id="run_20261129_120000", full=folder / "x.full.jsonl", manifest=folder / "x.manifest.json"
    )
    manifest = SimpleNamespace(
        directory=directory, mode="text", document={"scenario_path": str(folder / "s.json")}
    )
    return aisbench_job(
        scenario,
        folder,
        cast("Manifest", manifest),
        ENGINE,
        tokenizer=folder / "tokenizer",
        config=folder / "config.py",
        scratch=folder / "scratch",
    )


def test_the_scenario_counts_more_than_the_template_where_it_says_something(tmp_path: Path) -> None:
    made = job({"aisbench": {"model": {"batch_size": 7, "generation_kwargs": {"top_p": 1}}}}, tmp_path)[
        "model"
    ]
    assert made["chosen"] == {"batch_size": 7, "generation_kwargs": {"top_p": 1}}
    assert made["defaults"] == {"stream": True, "max_out_len": 1, "retry": 3}
    assert made["fixed"]["abbr"] == "run_20261129_120000-vllm"
    assert made["fixed"]["timeout_seconds"] == 3600
    driver = {"kind": "aisbench", "concurrency": 9, "retries": 0, "timeout_seconds": 5}
    made = job({"driver": driver}, tmp_path)["model"]
    assert made["chosen"] == {"batch_size": 9, "retry": 1}
    assert made["fixed"]["timeout_seconds"] == 5
    assert job({"driver": {"timeout_seconds": None}}, tmp_path)["model"]["fixed"]["timeout_seconds"] is None


def test_abbreviations_are_file_names(tmp_path: Path) -> None:
    made = job({"aisbench": {"dataset": {"abbr": "a/b c"}, "model": {"abbr": "x\\y/z"}}}, tmp_path)
    assert made["dataset"]["fixed"]["abbr"] == "a_b c"
    assert made["model"]["fixed"]["abbr"] == "x_y_z"


def test_no_secret(tmp_path: Path) -> None:
    made = job({"aisbench": {}, "service": {"api_key": "s3cret"}}, tmp_path)
    assert "s3cret" not in json.dumps(made)


def test_warmups_are_never_aisbenchs(tmp_path: Path) -> None:
    made = job(
        {"aisbench": {"extra_args": {"--num-warmups": 4, "--debug": True, "--mode": "perf"}}}, tmp_path
    )
    assert made["arguments"] == ["--debug", "--num-warmups", "0"]
    assert job({"aisbench": {"extra_args": {}}}, tmp_path)["arguments"] == ["--num-warmups", "0"]


def test_work_dir_of_a_template_counts_unless_the_scenario_has_one(tmp_path: Path) -> None:
    template = tmp_path / "perf.py"
    template.write_text("")
    default = str(tmp_path / "outputs" / "default")
    assert job({"aisbench": {}}, tmp_path)["work_dir"] == default
    assert job({"aisbench": {"config": "perf.py"}}, tmp_path)["work_dir"] is None
    assert job({"aisbench": {"config": "perf.py", "work_dir": "w"}}, tmp_path)["work_dir"] == str(
        tmp_path / "w"
    )
    assert job({"driver": {"kind": "aisbench"}}, tmp_path)["work_dir"] == default


@pytest.mark.parametrize(
    "path", [None, OLD_TEMPLATE, OLD_TEMPLATE.removeprefix("./"), "/opt/b/" + OLD_TEMPLATE[2:]]
)
def test_the_plugins_template_is_ours(path: str | None, tmp_path: Path) -> None:
    section = {} if path is None else {"config": path}
    assert template_of(parse_scenario({"aisbench": section}, folder=tmp_path)) is None


def test_a_template_that_is_not_there(tmp_path: Path) -> None:
    scenario: Scenario = parse_scenario({"aisbench": {"config": "mine.py"}}, folder=tmp_path)
    with pytest.raises(ScenarioError, match=r"aisbench\.config: .*mine\.py: no such file"):
        template_of(scenario)


def test_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HITLAB_AISBENCH_PYTHON", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DriverError, match="run make aisbench"):
        aisbench_python()
    monkeypatch.setenv("HITLAB_AISBENCH_PYTHON", str(tmp_path / "python"))
    with pytest.raises(DriverError, match=r"HITLAB_AISBENCH_PYTHON names .* which is no program"):
        aisbench_python()


def test_built_by_make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HITLAB_AISBENCH_PYTHON", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    python = tmp_path / "hitlab" / "aisbench" / "abc" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    (tmp_path / "hitlab" / "aisbench" / "current").symlink_to(python.parents[1])
    assert aisbench_python() == tmp_path / "hitlab" / "aisbench" / "current" / "bin" / "python"


def test_the_key_is_in_the_environment_alone(tmp_path: Path) -> None:
    options = {"records": tmp_path, "scratch": tmp_path}
    assert child_environment({"OPENAI_API_KEY": "old"}, api_key="", **options).get("OPENAI_API_KEY") is None
    child = child_environment({"OPENAI_API_KEY": "old", "TERM": "xterm"}, api_key="new", **options)
    assert child["OPENAI_API_KEY"] == "new"
    assert child["TERM"] == "dumb"


def test_a_tokenizer_that_is_no_folder_is_written_to_one(tmp_path: Path) -> None:
    demo = load_tokenizer("builtin:demo")
    folder = tokenizer_folder(demo, tmp_path / "tokenizer")
    assert load_tokenizer(str(folder)).fingerprint == demo.fingerprint
    assert tokenizer_folder(load_tokenizer(str(folder)), tmp_path / "unused") == folder
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize("said", [None, OLD_TEMPLATE, OLD_TEMPLATE.removeprefix("./")])
def test_the_plugins_default_is_hitlabs_template_whatever_lies_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None
) -> None:
    """In a checkout of AISBench, and with a scenario in that checkout."""
    checkout = tmp_path / "checkout"
    (checkout / OLD_TEMPLATE).parent.mkdir(parents=True)
    (checkout / OLD_TEMPLATE).write_text("raise SystemExit('an old template')")
    monkeypatch.chdir(checkout)
    section = {} if said is None else {"config": said}
    for folder in (checkout, tmp_path):
        assert template_of(parse_scenario({"aisbench": section}, folder=folder)) is None
        assert job({"aisbench": section}, folder)["template"] is None


def test_another_template_is_seen_from_the_scenarios_folder_and_not_from_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "mine.py").write_text("")
    monkeypatch.chdir(tmp_path)
    scenario = parse_scenario({"aisbench": {"config": "mine.py"}}, folder=tmp_path / "there")
    with pytest.raises(ScenarioError, match=r"there/mine\.py: no such file"):
        template_of(scenario)
    assert (
        template_of(parse_scenario({"aisbench": {"config": "mine.py"}}, folder=tmp_path))
        == tmp_path / "mine.py"
    )
