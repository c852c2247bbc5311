"""The ready scenarios for GPU hosts, each down to the call that Docker gets. Paths of the host are replaced."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.run_directory import RunDirectory
from contract.scenario import parse_scenario
from runner.engines.vllm import managed_engine
from tests.hitlab.conftest import REPOSITORY
from tests.runner.engines.fake_docker import FakeDocker, FakeImage, health_server

EXAMPLES = {
    path.stem: path
    for path in (REPOSITORY / "examples").glob("*/*.yaml")
    if yaml.safe_load(path.read_text()).get("engine", {}).get("kind") == "vllm"
}
"""Those whose engine is started by HitLab."""
ASCEND_FILES = (
    "usr/local/dcmi", "usr/local/bin/npu-smi", "usr/local/Ascend/driver/lib64", "usr/local/Ascend/driver/version.info",
    "etc/ascend_install.info",
)  # fmt: skip


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with health_server([200]) as port:
        yield port


def created(name: str, tmp_path: Path, port: int) -> tuple[list[str], dict[str, Any]]:
    """Image and command, and the options of the container that a scenario asks Docker for."""
    for file in ASCEND_FILES:
        (tmp_path / file).mkdir(parents=True)
    text = EXAMPLES[name].read_text()
    for folder in ("usr", "etc"):
        text = text.replace(f"- /{folder}/", f"- {tmp_path}/{folder}/")
    scenario = parse_scenario(yaml.safe_load(text), folder=tmp_path)
    assert scenario.driver_kind == "native"
    assert scenario.engine.kind == "vllm"
    host = FakeDocker(port)
    host.runtimes = {"runc": {}, "nvidia": {}}
    image = scenario.engine.image or "vllm/vllm-openai:v0.33.0"
    host.present[image] = FakeImage(digests=[f"{image.partition(':')[0]}@sha256:{'c' * 64}"])
    directory = RunDirectory(tmp_path / "outputs_20260101_000000", "run_20260101_000000")
    (directory.root / "log").mkdir(parents=True)
    environment = {"HITLAB_ALLOWED_ROOTS": str(tmp_path), "HITLAB_CACHE_PREFIX": "p"}
    with managed_engine(
        scenario, directory, scenario_folder=tmp_path, environment=environment, connect=lambda: host
    ) as engine:
        assert engine.ranks == scenario.service.dp_size
    (container,) = host.made
    return [container.image_name, *container.command], container.options


def after(command: list[str], flag: str) -> str:
    assert command.count(flag) == 1
    return command[command.index(flag) + 1]


def binds(options: dict[str, Any]) -> list[str]:
    return [mount["Target"] for mount in options["mounts"] if mount["Type"] == "bind"]


def volumes(options: dict[str, Any]) -> dict[str, str]:
    return {mount["Target"]: mount["Source"] for mount in options["mounts"] if mount["Type"] == "volume"}


def test_every_shipped_scenario_is_checked_here() -> None:
    assert set(EXAMPLES) == {"two-gpus", "eight-gpus", "vllm-ascend", "lmcache"}


@pytest.mark.parametrize("name", ["two-gpus", "eight-gpus", "vllm-ascend", "lmcache"])
def test_what_all_have(name: str, tmp_path: Path, port: int) -> None:
    command, options = created(name, tmp_path, port)
    assert command[1].startswith("Qwen/")
    assert after(command, "--block-size") == ("128" if name == "vllm-ascend" else "16")
    assert {"--enable-prefix-caching", "--enable-prompt-tokens-details"} <= set(command)
    assert [limit["Name"] for limit in options["ulimits"]] == ["memlock", "stack"]
    assert volumes(options) == {
        "/var/cache/hitlab/hub": "p-hub",
        "/var/cache/hitlab/compiled": "p-compiled-cccccccccccc",
    }
    labels = [mount["VolumeOptions"]["Labels"] for mount in options["mounts"] if mount["Type"] == "volume"]
    assert {label["com.hitlab.cache"] for label in labels} == {"hub", "compiled"}
    assert options["cap_drop"] == ["ALL"]
    assert "privileged" not in options
    assert options["ports"] == {"8000/tcp": ("127.0.0.1", None)}


def test_two_gpus(tmp_path: Path, port: int) -> None:
    command, options = created("two-gpus", tmp_path, port)
    assert command[0] == "vllm/vllm-openai:v0.33.0"
    assert after(command, "--data-parallel-size") == "2"
    (request,) = options["device_requests"]
    assert (request["Count"], request["Capabilities"]) == (2, [["gpu"]])
    assert options["devices"] == []
    assert binds(options) == []


def test_eight_gpus(tmp_path: Path, port: int) -> None:
    command, options = created("eight-gpus", tmp_path, port)
    assert (after(command, "--data-parallel-size"), after(command, "--tensor-parallel-size")) == ("4", "2")
    (request,) = options["device_requests"]
    assert request["Count"] == -1
    assert options["environment"]["NCCL_SOCKET_IFNAME"] == "eth0"
    assert options["shm_size"] == "32g"


def test_ascend(tmp_path: Path, port: int) -> None:
    command, options = created("vllm-ascend", tmp_path, port)
    assert command[0].startswith("quay.io/ascend/vllm-ascend:")
    assert options["device_requests"] == []
    assert [device.partition(":")[0] for device in options["devices"]] == [
        "/dev/davinci0", "/dev/davinci1", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc",
    ]  # fmt: skip
    assert binds(options) == [f"{tmp_path}/{file}" for file in ASCEND_FILES]
    assert all(mount["ReadOnly"] for mount in options["mounts"] if mount["Type"] == "bind")
    assert options["environment"]["ASCEND_RT_VISIBLE_DEVICES"] == "0,1"


def test_lmcache(tmp_path: Path, port: int) -> None:
    command, options = created("lmcache", tmp_path, port)
    assert (
        after(command, "--kv-transfer-config") == '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
    )
    assert options["environment"]["LMCACHE_CHUNK_SIZE"] == "256"
    assert options["environment"]["LMCACHE_MAX_LOCAL_CPU_SIZE"] == "40"
    assert after(command, "--kv-cache-memory-bytes") == str(8 << 30)
