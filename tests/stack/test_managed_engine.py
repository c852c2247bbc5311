"""A real vLLM in a container of the runner's, two ranks, on the CPU, through the command line.

Needs Docker and the image `vllm-cpu` (VLLM_CPU_IMAGE names another tag). Two engines are started and used to the end,
the other runs stop before theirs is ready.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pyarrow.parquet as pq
import pytest

from contract.rows import read_rows
from contract.run_directory import RunDirectory

HITLAB = Path(sys.executable).with_name("hitlab")
IMAGE = os.environ.get("VLLM_CPU_IMAGE", "vllm-cpu")
SECRET = "canary-3f1d"  # noqa: S105 - planted, to be looked for
HITLAB_IMAGE = os.environ.get("HITLAB_IMAGE", "hitlab")
SOCKET = Path("/var/run/docker.sock")
RUN_ID = "test-managed-engine"
RANKS = 2
LENGTHS = {"mode": "truncated_normal", "min": 150, "max": 1500, "mean": 700, "std": 400}
KEPT = {"image": IMAGE, "args": ["--enforce-eager", "--max-model-len", "4096"], "keep": True}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    try:
        client = docker.from_env()
        client.images.get(IMAGE)
    except docker.errors.DockerException as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no Docker with the image {IMAGE} (make images): {error}", pytrace=False)
        pytest.skip(f"no Docker with the image {IMAGE} (make images): {error}")
    yield client
    for container in managed(client):
        container.remove(force=True, v=True)
    client.close()


@pytest.fixture(scope="module")
def model_directory(client: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model as a folder of the host, which another user's engine may read."""
    folder = tmp_path_factory.mktemp("models")
    made = client.containers.create(IMAGE, labels={"com.hitlab": "true"})
    try:
        subprocess.run(["docker", "cp", "--quiet", f"{made.name}:/opt/demo-model", folder], check=True)
    finally:
        made.remove()
    for place in (folder, *folder.parents):
        if place.stat().st_uid == os.getuid() and place.name.startswith(("pytest", "models")):
            place.chmod(0o755)
    return folder / "demo-model"


def managed(client: Any) -> list[Any]:
    """Those of these tests: nobody else's engine is any business of theirs."""
    found = client.containers.list(
        all=True, filters={"label": "com.hitlab.managed=true"}, ignore_removed=True
    )
    return [container for container in found if container.labels["com.hitlab.run"].startswith(f"{RUN_ID}_")]


def write_scenario(folder: Path, **sections: Any) -> Path:
    document: dict[str, Any] = {
        "run": {"run_id": RUN_ID, "output_dir": str(folder / "outputs")},
        "tokenizer": {"path": "builtin:demo", "block_size": 32},
        "corpus": {"path": "builtin:word-problems"},
        "requests": {"count": 40, "input_length": LENGTHS, "output_length": {"mode": "fixed", "value": 4}},
        "service": {"model": "tiny", "dp_size": RANKS, "timeout_seconds": 120},
        "driver": {"kind": "native", "concurrency": 8},
        **sections,
    }
    path = folder / "scenario.json"
    path.write_text(json.dumps(document))
    return path


def hitlab(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HITLAB, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "STACK_SECRET": SECRET, **environment},
    )


def prepare(path: Path) -> RunDirectory:
    done = hitlab("prepare", "--scenario", path, "--mode", "text")
    assert done.returncode == 0, done.stderr
    return RunDirectory.of_manifest(Path(json.loads(done.stdout)["manifest"]))


def run_exact(path: Path, directory: RunDirectory, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run, compare every request's cached tokens with the rows' theory, and return measurement.json."""
    done = hitlab("run", "--scenario", path, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    analysis = json.loads(directory.analysis.read_text())
    rows = list(read_rows(directory.full))
    theory = sum(row["theoretical_hit_tokens"] for row in rows)
    measured = directory.runs / analysis["runtime"]["measurement"]
    records = pq.read_table(measured / "requests.parquet").to_pylist()
    assert theory > 0
    assert analysis["actual"]["global_hits"] == theory
    assert analysis["actual"]["global_queries"] == sum(row["actual_input_tokens"] for row in rows)
    assert {record["position"]: record["cached_tokens"] for record in records} == {
        row["sequence_index"]: row["theoretical_hit_tokens"] for row in rows
    }
    assert "POST /v1/completions" in (measured / "engine.log").read_text()
    document: dict[str, Any] = json.loads((measured / "measurement.json").read_text())
    return document


def test_plugin_scenario_with_a_mounted_model_is_exact(
    client: Any, model_directory: Path, tmp_path: Path
) -> None:
    path = write_scenario(
        tmp_path,
        tokenizer={"path": str(model_directory), "block_size": 32},
        prefix_cache={"mode": "warmup", "target_hit_rate": 0.6, "groups": {"count": 3}},
    )
    measurement = run_exact(path, prepare(path), "--engine", "vllm", HITLAB_VLLM_IMAGE=IMAGE)
    engine, container = measurement["engine"], measurement["engine"]["container"]
    assert measurement["overrides"] == {"engine.kind": "vllm"}
    assert engine["version"]
    assert engine["kind"] == "vllm"
    assert len(engine["num_gpu_blocks"]) == RANKS
    assert container["image_id"] == client.images.get(IMAGE).id
    assert container["command"][:3] == ["vllm", "serve", str(model_directory)]
    assert managed(client) == []


def test_kept_engine_is_used_again_and_hides_secrets(client: Any, tmp_path: Path) -> None:
    path = write_scenario(
        tmp_path,
        prefix_cache={"mode": "cold", "target_hit_rate": 0.5, "groups": {"count": 2}},
        engine={**KEPT, "kind": "vllm", "env_from": ["STACK_SECRET"]},
    )
    directory = prepare(path)
    first = run_exact(path, directory)["engine"]["container"]
    (kept,) = managed(client)
    assert kept.status == "running"
    assert kept.exec_run(["sh", "-c", "tr '\\0' '\\n' </proc/1/environ"]).output.decode().count(SECRET) == 1
    assert SECRET not in json.dumps(kept.attrs)
    assert kept.attrs["NetworkSettings"]["Ports"]["8000/tcp"][0]["HostIp"] == "127.0.0.1"
    assert kept.attrs["HostConfig"]["Privileged"] is False

    second = run_exact(path, directory)["engine"]["container"]
    assert (first["reused"], second["reused"]) == (False, True)
    assert second["name"] == first["name"]
    assert [container.id for container in managed(client)] == [kept.id]
    written = [file for file in directory.root.rglob("*") if file.is_file()]
    assert all(SECRET.encode() not in file.read_bytes() for file in written)


def test_wrong_flag_is_one_line_and_idle_kept_engines_make_room(client: Any, tmp_path: Path) -> None:
    engine = {"kind": "vllm", "image": IMAGE, "args": ["--no-such-flag", "7"]}
    path = write_scenario(tmp_path, engine=engine)
    directory = prepare(path)
    done = hitlab("run", "--scenario", path)
    assert done.returncode == 4
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    assert "engine.args: this vLLM does not know --no-such-flag" in line
    assert "unrecognized arguments" in directory.log("engine").read_text()
    assert "unrecognized arguments" in directory.log("run").read_text()
    assert managed(client) == []


def test_missing_model_is_one_line(client: Any, model_directory: Path, tmp_path: Path) -> None:
    """A tokenizer without a model, and a model without its weights, which vLLM itself notices."""
    lame = tmp_path / "model"
    lame.mkdir()
    for file in model_directory.glob("token*"):
        (lame / file.name).write_bytes(file.read_bytes())
    path = write_scenario(
        tmp_path,
        tokenizer={"path": str(lame), "block_size": 32},
        engine={"kind": "vllm", "image": IMAGE, "args": ["--enforce-eager"]},
    )
    prepare(path)
    done = hitlab("run", "--scenario", path)
    assert done.returncode == 2
    assert "holds no model" in done.stderr

    (lame / "config.json").write_bytes((model_directory / "config.json").read_bytes())
    for place in (lame, *lame.parents):
        if place.name.startswith(("pytest", "test_", "model")):
            place.chmod(0o755)
    done = hitlab("run", "--scenario", path)
    assert done.returncode == 4
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    assert "tokenizer.path: the model is missing or not whole there" in line
    assert managed(client) == []


def test_absent_image_is_one_line(client: Any, tmp_path: Path) -> None:
    path = write_scenario(tmp_path, engine={"kind": "vllm", "image": "127.0.0.1:9/no-such-image:1"})
    prepare(path)
    done = hitlab("run", "--scenario", path)
    assert done.returncode == 4
    assert "is not on the Docker host and cannot be pulled" in done.stderr
    assert managed(client) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_during_the_start_leaves_nothing(client: Any, tmp_path: Path, number: signal.Signals) -> None:
    process = starting(client, tmp_path)
    process.send_signal(number)
    assert process.wait(30) == 130
    assert managed(client) == []


def test_engine_of_a_killed_run_goes_at_the_next_start(client: Any, tmp_path: Path) -> None:
    process = starting(client, tmp_path)
    process.kill()
    process.wait(30)
    (left,) = managed(client)
    assert left.status == "running"
    other = tmp_path / "other"
    other.mkdir()
    test_wrong_flag_is_one_line_and_idle_kept_engines_make_room(client, other)


def test_engine_of_a_living_run_is_not_touched(client: Any, tmp_path: Path) -> None:
    process = starting(client, tmp_path)
    (owned,) = managed(client)
    engine = {"kind": "vllm", "image": IMAGE, "args": ["--no-such-flag", "7"]}
    path = write_scenario(tmp_path, engine=engine)
    assert hitlab("run", "--scenario", path).returncode == 4
    assert [container.id for container in managed(client)] == [owned.id]
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert managed(client) == []


def starting(client: Any, folder: Path) -> subprocess.Popen[bytes]:
    """A run whose engine has been started and is not ready."""
    path = write_scenario(folder, engine={**KEPT, "kind": "vllm", "keep": False})
    prepare(path)
    earlier = {container.id for container in managed(client)}
    process = subprocess.Popen([HITLAB, "run", "--scenario", path], stderr=subprocess.DEVNULL)
    patience = time.monotonic() + 60
    while not any(c.status == "running" and c.id not in earlier for c in managed(client)):
        assert process.poll() is None
        assert time.monotonic() < patience
        time.sleep(0.2)
    return process


# A command `vllm` that is the simulator, for what is not about the engine.
STAND_IN = """#!/opt/hitlab/bin/python
import os, sys
value = lambda flag: sys.argv[sys.argv.index(flag) + 1]
os.execv("/opt/hitlab/bin/hitlab", ["hitlab", "sim", "--host", "0.0.0.0", "--port", value("--port"),
    "--model-name", value("--served-model-name"), "--ranks", value("--data-parallel-size"),
    "--block-size", value("--block-size")])
"""
STAND_IN_DOCKERFILE = f"""FROM {HITLAB_IMAGE}
COPY --chmod=755 vllm /opt/hitlab/bin/vllm
LABEL com.hitlab.demo-model=/nowhere com.hitlab=true
"""


@pytest.fixture(scope="module")
def stand_in_image(client: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("stand-in")
    (folder / "vllm").write_text(STAND_IN)
    (folder / "Dockerfile").write_text(STAND_IN_DOCKERFILE)
    name = "hitlab-test-vllm:stand-in"
    subprocess.run(["docker", "build", "--quiet", "--tag", name, folder], check=True, capture_output=True)
    yield name
    client.images.remove(name, force=True)


@pytest.fixture(scope="module")
def network(client: Any) -> Iterator[str]:
    made = client.networks.create("hitlab-test-managed", labels={"com.hitlab": "true"})
    yield made.name
    made.remove()


def test_runner_in_a_container_reaches_it_over_the_private_network(
    client: Any, stand_in_image: str, network: str, tmp_path: Path
) -> None:
    path = write_scenario(
        tmp_path, engine={"kind": "vllm", "image": stand_in_image, "env_from": ["STACK_SECRET"]}
    )
    directory = prepare(path)
    command = [
        *("docker", "run", "--rm", "--label", "com.hitlab=true", "--network", network),
        *("--user", f"{os.getuid()}:{os.getgid()}", "--group-add", str(SOCKET.stat().st_gid)),
        *("--volume", f"{SOCKET}:{SOCKET}", "--volume", f"{tmp_path}:{tmp_path}"),
        *("--env", f"HITLAB_NETWORK={network}", "--env", "STACK_SECRET"),
        *(HITLAB_IMAGE, "run", "--scenario", str(path), "--measure-only"),
    ]
    environment = {**os.environ, "STACK_SECRET": SECRET}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    (measured,) = directory.runs.iterdir()
    assert str(measured) == done.stdout.strip()
    measurement = json.loads((measured / "measurement.json").read_text())
    assert measurement["status"] == "complete"
    engine = measurement["engine"]
    assert engine["inference_url"] == f"http://{engine['container']['name']}:8000/v1/completions"
    assert measured.joinpath("engine.log").is_file()
    assert managed(client) == []


def test_absent_network_and_absent_gpu_runtime_are_one_line(
    client: Any, stand_in_image: str, tmp_path: Path
) -> None:
    engine: dict[str, Any] = {"kind": "vllm", "image": stand_in_image}
    path = write_scenario(tmp_path, engine=engine)
    prepare(path)
    done = hitlab("run", "--scenario", path, HITLAB_NETWORK="no-such-network")
    assert done.returncode == 4
    assert "HITLAB_NETWORK: Docker has no such network" in done.stderr
    assert managed(client) == []
    if "nvidia" not in client.info()["Runtimes"]:
        path = write_scenario(tmp_path, engine={**engine, "gpus": 1})
        done = hitlab("run", "--scenario", path)
        assert done.returncode == 4
        assert "engine.gpus: Docker cannot hand on GPUs here" in done.stderr
    path = write_scenario(tmp_path, engine={**engine, "devices": ["/dev/davinci77"]})
    done = hitlab("run", "--scenario", path)
    assert done.returncode == 4
    assert "engine.devices: /dev/davinci77 is not on the Docker host" in done.stderr
    assert managed(client) == []
