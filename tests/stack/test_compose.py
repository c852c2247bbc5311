"""`docker compose up` as its first user meets it: no .env, nothing prepared. Grafana only where its image can be had."""

import json
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import docker
import pytest
import requests

from contract.run_directory import RunDirectory
from tests.real.job import assert_equal_to_the_token
from tests.stack.conftest import MANAGED, PROJECT, REPOSITORY, STACK, free_port, left_in_docker, output

DEMO_MINUTES = 0.4
START_SECONDS = 300
ANALYSIS_SECONDS = 60
SERVICES = {"init", "generator", "engine", "runner", "analyzer", "prometheus"}
HITLAB_UID = 10001


@dataclass(frozen=True)
class Demo:
    client: docker.DockerClient
    environment: dict[str, str]

    def compose(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # No .env: --env-file takes the place of one.
        return subprocess.run(
            ["docker", "compose", "--env-file", "/dev/null", "--project-directory", REPOSITORY, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
        )

    def containers(self) -> dict[str, Any]:
        found = self.client.containers.list(all=True, filters={"label": STACK})
        return {container.labels["com.docker.compose.service"]: container for container in found}

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.environment[f'{name}_PORT']}"


@pytest.fixture(scope="module")
def demo(empty_docker: None) -> Iterator[Demo]:
    """The demo, up and with its runs done."""
    ports = {f"{name}_PORT": str(free_port()) for name in ("GRAFANA", "PROMETHEUS", "ANALYZER")}
    client = docker.from_env()
    demo = Demo(client, {**os.environ, **ports, "DEMO_MINUTES": str(DEMO_MINUTES)})
    grafana = ["grafana"] if demo.compose("pull", "--quiet", "grafana").returncode == 0 else []
    up = demo.compose("up", "--detach", "runner", *grafana)
    assert up.returncode == 0, up.stderr
    ended = demo.containers()["runner"].wait(timeout=START_SECONDS)
    assert ended["StatusCode"] == 0, demo.compose("logs").stdout
    yield demo
    client.close()


@pytest.fixture(scope="module")
def artifacts(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The volume's content, once the analyzer has seen every run."""
    for _ in range(ANALYSIS_SECONDS):
        copy = tmp_path_factory.mktemp("artifacts")
        copied = demo.compose("cp", "analyzer:/artifacts/.", str(copy))
        assert copied.returncode == 0, copied.stderr
        runs = list(copy.glob("demo_*/result/runs/*"))
        if runs and all((run / "report.html").is_file() for run in runs):
            return copy
        time.sleep(1)
    pytest.fail(f"runs without analysis: {demo.compose('logs', 'analyzer').stdout}")


def test_every_run_of_the_demo_is_exact_to_the_token(demo: Demo, artifacts: Path) -> None:
    (manifest,) = artifacts.glob("demo_*/result/*.manifest.json")
    directory = RunDirectory.of_manifest(manifest)
    runs = sorted(directory.runs.iterdir())
    assert len(runs) >= 2
    for run in runs:
        analysis = json.loads((run / "analysis.json").read_text())
        assert_equal_to_the_token(analysis, directory)
        assert analysis["runtime"]["measurement"] == run.name
    assert f"{len(runs)} runs done. Look at Grafana" in demo.compose("logs", "runner").stdout


def test_ten_runs_fit_into_the_five_minutes_of_the_demo(artifacts: Path) -> None:
    runs = sorted(path for path in artifacts.glob("demo_*/result/runs/*"))
    measured = [json.loads((run / "measurement.json").read_text()) for run in runs]
    begun = [datetime.fromisoformat(measurement["started_at"]).timestamp() for measurement in measured]
    longest = max(after - before for before, after in pairwise(begun))
    assert longest < 300 / 10


def test_what_the_services_write_belongs_to_their_user(demo: Demo) -> None:
    wrong = demo.compose("exec", "-T", "analyzer", "find", "/artifacts", "-not", "-uid", str(HITLAB_UID))
    assert wrong.returncode == 0, wrong.stderr
    assert wrong.stdout == ""


def test_containers_are_confined(demo: Demo) -> None:
    containers = demo.containers()
    assert set(containers) >= SERVICES
    for service, container in containers.items():
        host = container.attrs["HostConfig"]
        user = container.attrs["Config"]["User"] or container.image.attrs["Config"]["User"]
        assert user not in ("", "0", "root", "0:0"), service
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"], service
        assert host["CapAdd"] in (None, []), service
        assert not host["Privileged"], service
        assert "no-new-privileges:true" in host["SecurityOpt"], service
        assert host["Memory"] > 0, service
        assert host["PidsLimit"] > 0, service
        assert not any("docker.sock" in mount["Source"] for mount in container.attrs["Mounts"]), service
        for published in (host["PortBindings"] or {}).values():
            assert [binding["HostIp"] for binding in published] == ["127.0.0.1"], service
    assert not containers["engine"].attrs["HostConfig"]["PortBindings"]


def test_running_containers_cannot_write_outside_their_volumes(demo: Demo) -> None:
    for service in ("engine", "analyzer"):
        tried = demo.compose("exec", "-T", service, "touch", "/opt/hitlab/x")
        assert tried.returncode != 0
        assert "Read-only file system" in tried.stderr
        assert demo.compose("exec", "-T", service, "id", "-u").stdout.strip() == str(HITLAB_UID)


def test_prometheus_saw_the_engine_of_the_runs(demo: Demo, artifacts: Path) -> None:
    (manifest,) = artifacts.glob("demo_*/result/*.manifest.json")
    run_id = json.loads(manifest.read_text())["run_id"]
    query = f'count by (rank) (max_over_time(vllm:prefix_cache_queries_total{{run_id="{run_id}"}}[10m]) > 0)'
    answer = requests.get(f"{demo.url('PROMETHEUS')}/api/v1/query", params={"query": query}, timeout=10)
    assert {series["metric"]["rank"] for series in answer.json()["data"]["result"]} == {"0", "1"}


def test_the_analyzer_serves_results(demo: Demo) -> None:
    assert requests.get(demo.url("ANALYZER"), timeout=10).status_code == 200
    assert "hitlab" in requests.get(f"{demo.url('ANALYZER')}/metrics", timeout=10).text


def test_the_password_is_on_its_volume_and_nowhere_else(demo: Demo) -> None:
    password = output("make", "--silent", "-C", REPOSITORY, "password").strip()
    assert len(password) >= 20
    assert demo.compose("run", "--rm", "-T", "init").returncode == 0
    assert output("make", "--silent", "-C", REPOSITORY, "password").strip() == password
    mode = demo.compose("exec", "-T", "analyzer", "stat", "-c", "%f", "/secrets/grafana-admin-password")
    assert stat.S_IMODE(int(mode.stdout, 16)) == 0o440
    for container in demo.containers().values():
        assert password not in json.dumps(container.attrs)
        assert password.encode() not in container.logs()


def test_down_leaves_nothing_a_managed_engine_included(demo: Demo) -> None:
    assert not left_in_docker(MANAGED), "an engine of somebody else's, which this test would remove"
    image = demo.containers()["engine"].image
    demo.client.containers.run(
        image,
        ["sim"],
        detach=True,
        network=f"{PROJECT}_default",
        labels={
            "com.hitlab.managed": "true",
            "com.hitlab.run": "left-behind",
            "com.hitlab.user": str(os.getuid()),
        },
    )
    assert set(left_in_docker(STACK)) == {"container", "volume", "network"}
    output("make", "--silent", "-C", REPOSITORY, "down")
    assert left_in_docker(STACK, MANAGED, "com.hitlab=true") == {}
