"""What a scenario says stays a text, whatever it says; a run's exit code decides what follows it."""

import json
import os
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from contract.errors import ServiceError
from runner.engines.engine import Engine
from runner.lock import engine_lock, user_folder
from tests.docker.conftest import REPOSITORY, StandIn

STEPS = ["needs", "inspect", "prepare", "validate", "run", "analyze"]


def test_every_step_once_and_where_the_result_lies(stand_in: StandIn) -> None:
    done = stand_in.run()
    assert done.returncode == 0, done.stderr
    assert stand_in.steps() == STEPS
    assert done.stdout.splitlines() == [
        "a table",
        f"Measurement: {stand_in.measurement}",
        f"Report: {stand_in.measurement}/report.html",
    ]
    assert list(stand_in.temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("run", "analysis", "code"),
    [(0, 0, 0), (1, 1, 1), (1, 0, 0), (0, 7, 7), (1, 3, 3), (5, 1, 5), (70, 7, 70)],
)
def test_a_measurement_is_analysed_and_shown_whatever_the_run_ended_with(
    stand_in: StandIn, run: int, analysis: int, code: int
) -> None:
    stand_in.does("run", f"{stand_in.measures}; exit {run}")
    stand_in.does("analyze", f"touch {stand_in.measurement}/report.html; echo a table; exit {analysis}")
    done = stand_in.run()
    assert done.returncode == code, done.stderr
    assert stand_in.steps() == STEPS
    assert done.stdout.startswith("a table\n")
    assert f"Report: {stand_in.measurement}/report.html" in done.stdout


@pytest.mark.parametrize("step", STEPS[:-1])
def test_a_step_that_fails_is_the_last(stand_in: StandIn, step: str) -> None:
    stand_in.does(step, "echo ERROR: no >&2; exit 4")
    done = stand_in.run()
    assert done.returncode == 4
    assert stand_in.steps() == STEPS[: STEPS.index(step) + 1]
    assert done.stderr.splitlines()[-1] == "ERROR: no"
    assert done.stdout == ""


def write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document))
    return path


def evil_scenarios(trace: Path) -> list[dict[str, object]]:
    """Each would write the file `trace` if a shell took any of its text for code. The first six are refused."""
    good = {"tokenizer": {"path": "builtin:demo"}, "corpus": {"path": "builtin:word-problems"}}
    code = f"a[$(id>{trace})]"
    lines = f"x\nvariable {code}"
    return [
        {**good, "engine": {"kind": "vllm", "env_from": [code]}},
        {**good, "engine": {"kind": "vllm", "env_from": [f"HF_TOKEN\n{code}"]}},
        {**good, "engine": {"kind": lines}},
        {**good, "driver": {"kind": lines}},
        {**good, "tokenizer": {"path": f"/{lines}"}},
        {**good, "run": {"run_id": f'x" `id>{trace}` "'}},
        {**good, "corpus": {"path": lines}},
        {**good, "service": {"model": f"$(id>{trace})"}, "aisbench": {"model": {"abbr": f"`id>{trace}`"}}},
    ]


@pytest.mark.parametrize("number", range(7))
def test_no_text_of_a_scenario_is_run(stand_in: StandIn, tmp_path: Path, number: int) -> None:
    trace = tmp_path / "trace"
    stand_in.does("needs", '"$HITLAB" "$@"')
    scenario = write(tmp_path / "scenario $(touch x).json", evil_scenarios(trace)[number])
    done = stand_in.run(SCENARIO=scenario)
    assert not trace.exists()
    if number < 6:
        assert done.returncode == 2
        assert stand_in.steps() == ["needs"]
        assert all(line.startswith("ERROR: ") for line in done.stderr.splitlines())
    else:
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["a[$(id>TRACE)]", "A B", "1A", "", "A\nB", "A-B", "x=$(id>TRACE)", "Ä"])
def test_a_name_that_is_no_variables_is_not_looked_up(stand_in: StandIn, tmp_path: Path, name: str) -> None:
    """Whatever `needs` says: the shell itself looks."""
    trace = tmp_path / "trace"
    entry = tmp_path / "entry"
    entry.write_bytes(f"variable {name.replace('TRACE', str(trace))}\0".encode())
    stand_in.does("needs", f"printf 'engine external\\0driver native\\0'; cat {entry}")
    done = stand_in.run()
    assert done.returncode == 2
    assert "is not the name of a variable" in done.stderr
    assert not trace.exists()
    assert stand_in.steps() == ["needs"]


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_variables_are_handed_over_in_a_file_of_the_caller_alone(
    stand_in: StandIn, tmp_path: Path, ending: str
) -> None:
    handed = tmp_path / "handed"
    stand_in.does("needs", r"printf 'engine external\0driver native\0variable HF_TOKEN\0variable UNSET_1\0'")
    stand_in.does("inspect", f'cp -p "$TMPDIR"/hitlab-bench.*/secrets {handed}')
    done = stand_in.run(HF_TOKEN=f"a=$(id) b{ending}", OPENAI_API_KEY="sk")
    assert done.returncode == 0, done.stderr
    assert handed.read_text() == "OPENAI_API_KEY=sk\nHF_TOKEN=a=$(id) b\n"
    assert handed.stat().st_mode & 0o777 == 0o600
    assert "sk" not in "\n".join(stand_in.calls()).split()


def test_a_value_of_several_lines_is_refused_and_not_shown(stand_in: StandIn) -> None:
    done = stand_in.run(OPENAI_API_KEY="sk-canary\nHF_TOKEN=forged")
    assert done.returncode == 2
    assert "OPENAI_API_KEY: its value has more than one line" in done.stderr
    assert "canary" not in done.stderr


@pytest.mark.parametrize("name", ['a "b".json', "a\\b.json", "a $(touch x) 'b'.json", "-a.json", "ä*.json"])
def test_any_file_name_is_a_file_name(stand_in: StandIn, tmp_path: Path, name: str) -> None:
    (tmp_path / "scenarios").mkdir()
    scenario = write(tmp_path / "scenarios" / name, {})
    stand_in.does("prepare", f'printf %s "$7" >{tmp_path}/output; echo "$7.manifest.json"')
    stand_in.does("validate", f'printf %s "$3" >{tmp_path}/manifest')
    done = stand_in.run(SCENARIO=scenario)
    assert done.returncode == 0, done.stderr
    base = str(stand_in.artifacts / name.removesuffix(".json"))
    assert (tmp_path / "output").read_text() == base
    assert (tmp_path / "manifest").read_text() == f"{base}.manifest.json"


def test_flags_end_with_hitlabs_own_code(stand_in: StandIn) -> None:
    stand_in.does("engine", "echo a summary; exit 7")
    done = stand_in.run(REPOSITORY / "docker/bench-flags", "engine", "--workload", "random prefill")
    assert (done.returncode, done.stdout) == (7, "a summary\n")
    assert stand_in.calls()[-2].endswith(r"--workload random\ prefill ")


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_an_authority_of_the_environment_is_mounted_and_named(
    stand_in: StandIn, tmp_path: Path, variable: str
) -> None:
    (tmp_path / "real.pem").write_text("x")
    (tmp_path / "ca.pem").symlink_to("real.pem")
    done = stand_in.run(**{variable: tmp_path / "ca.pem"})
    assert done.returncode == 0, done.stderr
    runs = [call for call in stand_in.calls() if " run " in call]
    for call in runs:
        assert f"--volume {tmp_path}/real.pem:{tmp_path}/real.pem:ro" in call
        assert f"--env {variable}={tmp_path}/real.pem" in call
    done = stand_in.run(**{variable: tmp_path / "gone.pem"})
    assert done.returncode == 2
    assert f"{variable}={tmp_path}/gone.pem: no such file" in done.stderr


@pytest.mark.parametrize("script", ["docker/bench", "docker/bench-flags"])
@pytest.mark.parametrize("runtime", ["runtime", "missing"])
def test_a_bench_and_a_run_of_the_host_hold_one_lock(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, script: str, runtime: str
) -> None:
    """Under the user's runtime directory or, where there is none, the state directory; artifacts lie elsewhere."""
    (stand_in.folder / "runtime").mkdir()
    environment = {"XDG_RUNTIME_DIR": stand_in.folder / runtime}
    stand_in.does("engine", "true")
    arguments = ["engine"] if script == "docker/bench-flags" else []
    assert stand_in.run(REPOSITORY / script, *arguments, **environment).returncode == 0
    call = next(shlex.split(call) for call in stand_in.calls() if " bench-host " in call)
    options = list(pairwise(call))
    given = next(value for _, value in options if value.startswith("XDG_RUNTIME_DIR="))
    inside = given.partition("=")[2]
    assert ("--volume", f"{inside}/hitlab:{inside}/hitlab") in options
    outside = user_folder(stand_in.environment(**environment))

    # In the container nothing but what is mounted can be written, and the engine has another name.
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != inside and access(path, mode))
    assert user_folder({"XDG_RUNTIME_DIR": inside, "HOME": "/nonexistent"}) == outside
    host, container = (
        Engine("external", f"http://{name}:9/v1/completions", (f"http://{name}:9/metrics",), None, "m", 1)
        for name in ("localhost", "127.0.0.1")
    )
    monkeypatch.setenv("XDG_RUNTIME_DIR", inside)
    with engine_lock(host, stand_in.folder / "own", "host"), pytest.raises(ServiceError, match="run host"):
        engine_lock(container, stand_in.artifacts, "bench").__enter__()
