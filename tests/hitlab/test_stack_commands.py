"""Commands that the container stack is made of: init, needs, demo, and secrets from a file."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.documents import write_document
from contract.errors import ScenarioError
from hitlab.caller import VARIABLE, take_umask
from hitlab.secret_environment import FILE_VARIABLE, load_secrets

HITLAB = Path(sys.executable).with_name("hitlab")
SCENARIO = Path(__file__).resolve().parents[2] / "examples" / "quickstart" / "quickstart.yaml"


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
    path = tmp_path / "examples" / "a" / "a.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(SCENARIO.read_text().replace("count: 150", "count: 12"))
    assert hitlab("prepare", "--scenario", path, "--mode", "text").returncode == 0
    done = hitlab("demo", "--scenario", path, "--minutes", "0", "--done-message", "Look there.")
    assert done.returncode == 0, done.stderr
    assert done.stderr.rstrip().endswith("Run 1 done.\n1 runs done. Look there.")
    (measured,) = done.stdout.splitlines()
    assert json.loads((Path(measured) / "measurement.json").read_text())["status"] == "complete"


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[Any]]]:
    """Starts processes, and ends what is left of them."""
    processes: list[subprocess.Popen[Any]] = []

    def start(*command: str | Path, **options: Any) -> subprocess.Popen[Any]:
        processes.append(subprocess.Popen([HITLAB, *command], stdout=subprocess.DEVNULL, **options))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_the_demo_waits_for_its_engine_and_goes_on(
    tmp_path: Path, started: Callable[..., subprocess.Popen[Any]]
) -> None:
    """Nobody listens, then the engine comes, is killed under load and comes again: no such run is a success."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    document = yaml.safe_load(SCENARIO.read_text())
    document["engine"] = {"kind": "external"}
    document["requests"]["count"] = 60
    document["service"] |= {
        "inference_url": f"{url}/v1/completions",
        "metrics_url": f"{url}/metrics",
        "reset_url": f"{url}/reset_prefix_cache",
    }
    path = tmp_path / "examples" / "a" / "a.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(document))
    assert hitlab("prepare", "--scenario", path, "--mode", "text").returncode == 0

    service, block_size = document["service"], str(document["tokenizer"]["block_size"])
    engine = (
        "sim",
        "--port",
        str(port),
        "--ranks",
        "2",
        "--model-name",
        service["model"],
        "--block-size",
        block_size,
    )
    demo = started("demo", "--scenario", path, "--minutes", "60", stderr=subprocess.PIPE, text=True)
    assert demo.stderr is not None
    wait_for(demo.stderr, "waiting for the engine: ")
    slow = started(*engine, "--decode-tokens-per-second", "1")
    wait_for(demo.stderr, "the engine is there")
    wait_for(demo.stderr, "Run requests")
    slow.kill()
    slow.wait()
    wait_for(demo.stderr, "Run 1 failed (exit code ")
    wait_for(demo.stderr, "waiting for the engine: ")
    started(*engine)
    wait_for(demo.stderr, "Run 2 done.")
    demo.send_signal(signal.SIGTERM)
    assert demo.wait(60) == 130
    states = [
        json.loads(file.read_text())["status"]
        for file in sorted(tmp_path.rglob("result/runs/*/measurement.json"))
    ]
    assert states[0] in ("partial", "failed")
    assert states[1] == "complete"


def wait_for(lines: Iterable[str], beginning: str) -> None:
    seen = []
    for line in lines:
        if line.startswith(beginning):
            return
        seen.append(line)
    pytest.fail(f"no line begins with {beginning!r}: {seen}")


@pytest.mark.parametrize(("text", "mode"), [("077", 0o600), ("0002", 0o664), ("", 0o644)])
def test_the_umask_of_the_caller_holds_for_artifacts(tmp_path: Path, text: str, mode: int) -> None:
    before = os.umask(0o022)
    try:
        take_umask({VARIABLE: text})
        write_document(tmp_path / "a.json", {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == mode


@pytest.mark.parametrize("text", ["abc", "9", "-1", "10000"])
def test_an_umask_that_is_none_is_told(text: str) -> None:
    with pytest.raises(ScenarioError, match=VARIABLE):
        take_umask({VARIABLE: text})


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
