"""`make bench` as a normal user, with a scenario of the AISBench plugin's that lies outside the checkout."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from contract.run_directory import RunDirectory
from tests.mmmu import FULL_HD, picture, write_mmmu
from tests.real.job import assert_equal_to_the_token
from tests.shared_data import SHARED_DATA
from tests.stack.conftest import REPOSITORY, free_port, output

GSM8K = SHARED_DATA / "gsm8k_test.jsonl"
SOCKET = Path("/var/run/docker.sock")
NORMAL_USER = 12345
CANARY = "sk-canary-8a1f"
BENCH_SECONDS = 300


@dataclass(frozen=True)
class Bench:
    """A checkout, a scenario folder, a data folder and an artifacts folder, all of one normal user's."""

    folder: Path
    uid: int

    def write_scenario(self, **sections: Any) -> Path:
        document = {
            "run": {"run_id": "outside"},
            "tokenizer": {"path": "builtin:demo", "block_size": 32},
            "corpus": {"path": "../data/GSM8K.jsonl", "field": "question"},
            "requests": {"count": 60, "input_length": {"mode": "fixed", "value": 512}},
            "prefix_cache": {"mode": "cold", "target_hit_rate": 0.5, "groups": {"count": 2}},
            "service": {"model": "demo", "dp_size": 2},
            "aisbench": {"model": {"batch_size": 4}},
            **sections,
        }
        path = self.folder / "scenarios" / "plugin scenario.json"
        path.write_text(json.dumps(document))
        return path

    def start(self, *command: str, umask: int = 0o022, settings: Mapping[str, Any]) -> subprocess.Popen[str]:
        defaults = {
            "ARTIFACTS_DIR": self.folder / "artifacts",
            "DATA_DIR": self.folder / "data",
            "DRIVER": "native",
        }
        # As root the tests become somebody else, who may use Docker.
        someone = (
            {"user": self.uid, "group": self.uid, "extra_groups": [SOCKET.stat().st_gid]}
            if os.geteuid() == 0
            else {}
        )
        process: subprocess.Popen[str] = subprocess.Popen(
            command or ("docker/bench",),
            cwd=self.folder / "checkout",
            env={
                **os.environ,
                "HOME": str(self.folder),
                **{k: str(v) for k, v in {**defaults, **settings}.items()},
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            umask=umask,
            **someone,  # type: ignore[call-overload]
        )
        return process

    def run(self, *command: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        process = self.start(*command, settings=settings)
        out, err = process.communicate(timeout=BENCH_SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def manifests(self) -> set[Path]:
        return set((self.folder / "artifacts").glob("*/result/*.manifest.json"))


@pytest.fixture(scope="module")
def bench(empty_docker: None, folder: Path) -> Bench:
    for name in ("scenarios", "data", "artifacts", "checkout"):
        (folder / name).mkdir()
    tracked = output("git", "-C", REPOSITORY, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = "\0".join(name for name in tracked.split("\0") if (REPOSITORY / name).is_file())
    packed = subprocess.run(
        ["tar", "-C", REPOSITORY, "--null", "-T-", "-c"],
        input=names.encode(),
        capture_output=True,
        check=True,
    )
    subprocess.run(["tar", "-C", folder / "checkout", "-x"], input=packed.stdout, check=True)
    corpus = GSM8K if GSM8K.is_file() else REPOSITORY / "prompts/builtin/word-problems.jsonl"
    (folder / "data" / "GSM8K.jsonl").write_text(corpus.read_text())
    uid = os.geteuid() or NORMAL_USER
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, uid, uid)
    return Bench(folder, uid)


@pytest.fixture
def engine() -> Iterator[str]:
    """A simulator that listens on the host's loopback alone."""
    port = free_port()
    process = subprocess.Popen(
        [Path(sys.executable).with_name("hitlab"), "sim", "--port", str(port)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(timeout=10)


def test_twice_in_a_row_each_with_table_report_and_files_of_the_caller(bench: Bench) -> None:
    scenario = bench.write_scenario()
    for _ in range(2):
        before = bench.manifests()
        done = bench.run("make", "--silent", "bench", f"SCENARIO={scenario}", "ENGINE=simulator")
        assert done.returncode == 0, done.stderr
        assert "Overall Actual Hit Rate" in done.stdout
        assert "Run requests (60)" in done.stderr
        report = re.search(r"^Report: (.+)$", done.stdout, re.MULTILINE)
        assert report
        assert Path(report[1]).is_file()
        (manifest,) = bench.manifests() - before
        directory = RunDirectory.of_manifest(manifest)
        assert_equal_to_the_token(json.loads(directory.analysis.read_text()), directory)
    written = [bench.folder / "artifacts", *(bench.folder / "artifacts").rglob("*")]
    assert {path.stat().st_uid for path in written} == {bench.uid}
    assert [path.name for path in (bench.folder / "scenarios").iterdir()] == [scenario.name]


def test_an_engine_on_the_loopback_of_the_host_and_a_key_that_is_written_nowhere(
    bench: Bench, engine: str
) -> None:
    service = {
        "inference_url": f"{engine}/v1/completions",
        "metrics_url": f"{engine}/metrics",
        "reset_url": f"{engine}/reset_prefix_cache",
        "model": "demo",
        "dp_size": 2,
    }
    before = bench.manifests()
    done = bench.run(SCENARIO=bench.write_scenario(service=service), OPENAI_API_KEY=CANARY)
    assert done.returncode == 0, done.stderr
    assert "vllm:prefix_cache_queries" in requests.get(f"{engine}/metrics", timeout=10).text
    (manifest,) = bench.manifests() - before
    for path in (bench.folder / "artifacts").rglob("*"):
        assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path
    measured = json.loads(next(manifest.parent.glob("runs/*/measurement.json")).read_text())
    assert measured["engine"]["kind"] == "external"


def test_a_signal_ends_the_container_and_what_was_measured_is_shown(bench: Bench) -> None:
    """SIGTERM to docker/bench alone, in the middle of the load. Its files are as private as the caller's umask says."""
    before = bench.manifests()
    engine = {"kind": "simulator", "decode_tokens_per_second": 2}
    process = bench.start(settings={"SCENARIO": bench.write_scenario(engine=engine)}, umask=0o077)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("Run requests"):
            break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=BENCH_SECONDS)
    assert process.returncode == 130, err
    assert "Overall Actual Hit Rate" in out
    (manifest,) = bench.manifests() - before
    (run,) = RunDirectory.of_manifest(manifest).runs.iterdir()
    assert f"Measurement: {run}\n" in out
    assert json.loads((run / "measurement.json").read_text())["status"] == "interrupted"
    assert "hitlab-bench" not in output("docker", "ps", "--all", "--format", "{{.Names}}")
    root = manifest.parents[1]
    assert {path.stat().st_mode & 0o077 for path in (root, *root.rglob("*"))} == {0}


def test_exit_codes_pass_through_and_make_names_them(bench: Bench) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    service = {"inference_url": f"{nobody}/v1/completions", "metrics_url": f"{nobody}/metrics"}
    scenario = bench.write_scenario(service={**service, "model": "demo"})
    done = bench.run(SCENARIO=scenario)
    assert done.returncode == 4
    assert f"ERROR: {nobody}" in done.stderr
    made = bench.run("make", "bench", f"SCENARIO={scenario}")
    assert made.returncode == 2
    assert "Error 4" in made.stderr


def test_a_path_that_no_mount_covers_names_the_setting(bench: Bench) -> None:
    scenario = bench.write_scenario(tokenizer={"path": "/weights/Qwen", "block_size": 32})
    done = bench.run(SCENARIO=scenario, DATA_DIR="")
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    assert [line.split()[1] for line in errors] == ["corpus.path:", "tokenizer.path:"]
    assert "set DATA_DIR to a folder above it" in errors[0]
    assert "set MODELS_DIR to a folder above it" in errors[1]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"SCENARIO": ""}, "name a scenario: make bench SCENARIO="),
        ({"SCENARIO": "/nowhere.json"}, "SCENARIO=/nowhere.json: no such file"),
        ({"MODELS_DIR": "/nowhere"}, "MODELS_DIR=/nowhere: no such folder"),
        ({"ARTIFACTS_DIR": "/etc"}, "ARTIFACTS_DIR=/etc: not writable"),
        ({"ENGINE": "warp"}, "--engine warp: must be"),
    ],
)
def test_wrong_settings_are_told_in_one_line(bench: Bench, settings: dict[str, str], told: str) -> None:
    done = bench.run(**{"SCENARIO": bench.write_scenario(), **settings})
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("ERROR: "))
    assert told in line


def test_a_plugin_scenario_is_sent_by_aisbench(bench: Bench) -> None:
    """Nobody names a driver, and the scenario has an aisbench section. Its folder cannot be written to."""
    before = bench.manifests()
    done = bench.run(SCENARIO=bench.write_scenario(), ENGINE="simulator", DRIVER="")
    assert done.returncode == 0, done.stderr
    (manifest,) = bench.manifests() - before
    directory = RunDirectory.of_manifest(manifest)
    assert_equal_to_the_token(json.loads(directory.analysis.read_text()), directory)
    (run,) = directory.runs.iterdir()
    left = json.loads((run / "measurement.json").read_text())["aisbench"]
    assert left["failed_requests"] == 0
    assert (run / left["csv"]).is_file()
    results = Path(left["results"])
    assert results.is_relative_to(bench.folder / "artifacts")
    assert {path.stat().st_uid for path in (results, *results.rglob("*"))} == {bench.uid}


def test_mode_mm_prepares_and_sends_images(bench: Bench) -> None:
    images = bench.folder / "data" / "MMMU"
    write_mmmu(images / "test-0.parquet", [[picture(FULL_HD)]])
    requests = {"count": 20, "input_length": {"mode": "fixed", "value": 30}}
    multimodal = {"mmmu_parquet_dir": "../data/MMMU", "scenarios": ["single_1080p"]}
    scenario = bench.write_scenario(multimodal=multimodal, requests=requests)
    before = bench.manifests()
    done = bench.run(SCENARIO=scenario, ENGINE="simulator", MODE="mm")
    assert done.returncode == 0, done.stderr
    (manifest,) = bench.manifests() - before
    analysis = json.loads(RunDirectory.of_manifest(manifest).analysis.read_text())
    assert analysis["expected"]["hit_tokens"] == analysis["actual"]["global_hits"] > 0
    assert analysis["actual"]["requests"]["differing_requests"] == 0


def test_a_bench_of_flags_writes_to_the_artifacts_of_the_caller(bench: Bench, engine: str) -> None:
    flags = ["--engine-url", engine, "--model", "demo", "--tokenizer", "builtin:demo", "--json"]
    load = ["--workload", "random-prefill", "--rp-num-requests", "10", "--rp-request-length", "300"]
    done = bench.run("docker/bench-flags", "engine", *flags, *load)
    assert done.returncode == 0, done.stderr
    assert "Engine Benchmark Result (random-prefill)" in done.stdout
    summary = bench.folder / "artifacts" / "bench_summary.json"
    assert summary.stat().st_uid == bench.uid
    assert json.loads(summary.read_text())["results"]["successful_requests"] == 10
    refused = bench.run("docker/bench-flags", "engine", "--workload", "random-prefill")
    assert refused.returncode == 2


def test_engine_vllm_serves_a_scenario_that_has_no_engine_section(bench: Bench) -> None:
    """A real vLLM on the CPU, two ranks, started and ended by the runner in its container."""
    image = os.environ.get("VLLM_CPU_IMAGE", "vllm-cpu")
    if subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode:
        reason = f"no image {image} (make images)"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    before = bench.manifests()
    done = bench.run(SCENARIO=bench.write_scenario(), ENGINE="vllm", HITLAB_VLLM_IMAGE=image)
    assert done.returncode == 0, done.stderr
    (manifest,) = bench.manifests() - before
    directory = RunDirectory.of_manifest(manifest)
    assert_equal_to_the_token(json.loads(directory.analysis.read_text()), directory)
    (run,) = directory.runs.iterdir()
    assert json.loads((run / "measurement.json").read_text())["engine"]["kind"] == "vllm"
    assert (run / "engine.log").stat().st_size > 0
    name = json.loads((run / "measurement.json").read_text())["engine"]["container"]["name"]
    assert name not in output("docker", "ps", "--all", "--format", "{{.Names}}").split()
