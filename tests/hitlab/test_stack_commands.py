"""Commands that the container stack is made of: init, needs, demo, and secrets from a file."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from contract.errors import ScenarioError
from hitlab.secret_environment import FILE_VARIABLE, load_secrets

HITLAB = Path(sys.executable).with_name("hitlab")
SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "quickstart.yaml"


def hitlab(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HITLAB, *arguments], capture_output=True, text=True, check=False)


def test_init_makes_a_password_once_and_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "grafana-admin-password"
    assert hitlab("init", "--secrets", tmp_path).returncode == 0
    first = path.read_text()
    assert len(first) >= 20
    assert stat.S_IMODE(path.stat().st_mode) == 0o440
    assert hitlab("init", "--secrets", tmp_path).returncode == 0
    assert path.read_text() == first
    other = tmp_path / "other"
    other.mkdir()
    hitlab("init", "--secrets", other)
    assert (other / path.name).read_text() != first


def test_init_without_its_folder(tmp_path: Path) -> None:
    done = hitlab("init", "--secrets", tmp_path / "absent")
    assert done.returncode == 3
    assert "cannot be written" in done.stderr


def test_needs_tells_engine_paths_and_variables(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    engine = {"kind": "vllm", "env_from": ["HF_TOKEN"]}
    path.write_text(json.dumps({"engine": engine, "tokenizer": {"path": "/models/Q"}}))
    done = hitlab("needs", "--scenario", path)
    assert done.returncode == 0
    assert done.stdout.split("\0") == [
        "engine vllm",
        "driver native",
        f"path {tmp_path}/GSM8K.jsonl",
        "path /models/Q",
        "variable HF_TOKEN",
        "",
    ]
    refused = hitlab("needs", "--scenario", path, "--mounted", tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("ERROR: tokenizer.path: /models/Q ")


def test_needs_checks_the_whole_text_and_no_path_forges_an_entry(tmp_path: Path) -> None:
    """The files that it names need not be there."""
    path = tmp_path / "a.json"
    lengths = {"mode": "csv", "path": "absent.csv"}
    path.write_text(json.dumps({"requests": {"input_length": lengths}, "corpus": {"path": "x\nvariable A"}}))
    done = hitlab("needs", "--scenario", path)
    assert done.returncode == 0, done.stderr
    assert [need.partition(" ")[0] for need in done.stdout.split("\0")] == [
        "engine", "driver", "path", "path", "path", "",
    ]  # fmt: skip
    path.write_text(json.dumps({"engine": {"env_from": ["a[$(id)]"]}, "requests": {"count": 0}}))
    refused = hitlab("needs", "--scenario", path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert [line.split(": ")[2] for line in refused.stderr.splitlines()] == [
        "requests.count",
        "engine.env_from[0]",
    ]


def test_a_plugin_scenario_without_an_engine_section_has_an_external_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    assert hitlab("needs", "--scenario", path).stdout.startswith("engine external\0driver native\0")
    path.write_text('{"aisbench": {}}')
    assert hitlab("needs", "--scenario", path).stdout.startswith("engine external\0driver aisbench\0")


def test_demo_without_data_is_the_error_of_run(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(SCENARIO.read_text())
    done = hitlab("demo", "--scenario", path, "--minutes", "0")
    assert done.returncode == 3
    assert "no data has been prepared" in done.stderr


def test_demo_runs_once_in_no_time(tmp_path: Path) -> None:
    path = tmp_path / "scenarios" / "a.yaml"
    path.parent.mkdir()
    path.write_text(SCENARIO.read_text().replace("count: 150", "count: 12"))
    assert hitlab("prepare", "--scenario", path, "--mode", "text").returncode == 0
    done = hitlab("demo", "--scenario", path, "--minutes", "0", "--done-message", "Look there.")
    assert done.returncode == 0, done.stderr
    assert done.stderr.rstrip().endswith("1 runs done. Look there.")
    (measured,) = done.stdout.splitlines()
    assert json.loads((Path(measured) / "measurement.json").read_text())["status"] == "complete"


def test_secrets_come_from_the_file_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text("OPENAI_API_KEY=a=b\nHF_TOKEN=\n")
    environment = {FILE_VARIABLE: str(path)}
    load_secrets(environment)
    assert environment == {FILE_VARIABLE: str(path), "OPENAI_API_KEY": "a=b", "HF_TOKEN": ""}
    untouched: dict[str, str] = {}
    load_secrets(untouched)
    assert untouched == {}


def test_a_broken_file_of_secrets_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text("A=b\nsk-canary\n")
    with pytest.raises(ScenarioError) as told:
        load_secrets({FILE_VARIABLE: str(path)})
    assert f"{path}:2" in str(told.value)
    assert "canary" not in str(told.value)
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_secrets({FILE_VARIABLE: str(tmp_path / "absent")})
