"""From a scenario to a container."""

from pathlib import Path
from typing import Any

import pytest

from contract.errors import ScenarioError
from contract.scenario import Scenario, parse_scenario
from contract.scenario.model import VARIABLES_OF_HITLAB
from runner.engines.vllm.bounds import Mount
from runner.engines.vllm.caches import with_caches
from runner.engines.vllm.configuration import DEFAULT_IMAGE, Configuration, configuration, secrets_of
from tests.runner.engines.fake_docker import FakeImage


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "weights" / "Qwen"
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder


def scenario(tokenizer: str | Path, folder: Path, **engine: Any) -> Scenario:
    return parse_scenario(
        {
            "tokenizer": {"path": str(tokenizer), "block_size": 64},
            "service": {"model": "served", "dp_size": 4},
            "engine": engine,
        },
        folder=folder,
    )


def configured(
    tokenizer: str | Path, folder: Path, environment: dict[str, str] | None = None, **engine: Any
) -> Configuration:
    return configuration(scenario(tokenizer, folder, **engine), folder, environment or {})


def value_of(command: tuple[str, ...], flag: str) -> str:
    assert command.count(flag) == 1
    return command[command.index(flag) + 1]


def test_plugin_scenario_without_an_engine_section(model: Path, tmp_path: Path) -> None:
    made = configured(model, tmp_path)
    command = made.command(None)
    assert command[0] == str(model)
    assert value_of(command, "--served-model-name") == "served"
    assert value_of(command, "--data-parallel-size") == "4"
    assert value_of(command, "--block-size") == "64"
    assert {"--enable-prefix-caching", "--enable-prompt-tokens-details"} <= set(command)
    assert made.mounts == (Mount(str(model), str(model)),)
    assert made.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert made.image == DEFAULT_IMAGE
    assert made.network is None
    assert made.entrypoint == ("vllm", "serve")
    assert made.gpus is None


def test_settings_of_the_scenario_and_the_environment(model: Path, tmp_path: Path) -> None:
    (tmp_path / "lora").mkdir()
    made = configured(
        model / "tokenizer.json",
        tmp_path,
        {"HITLAB_VLLM_IMAGE": "ours:2", "HITLAB_NETWORK": "hitlab"},
        args=["--max-model-len", "8192"],
        gpus=[0, "GPU-7"],
        devices=["/dev/davinci0"],
        kv_cache_gib=1.5,
        shm_size="4g",
        mounts=["lora"],
        env_from=["HF_TOKEN", "HF_TOKEN"],
    )
    command = made.command(None)
    assert command[:3] == (str(model), "--max-model-len", "8192")
    assert value_of(command, "--kv-cache-memory-bytes") == str(3 * 2**29)
    assert (made.image, made.network) == ("ours:2", "hitlab")
    assert made.gpus == ("0", "GPU-7")
    assert [mount.target for mount in made.mounts] == [str(model), str(tmp_path / "lora")]
    assert made.env_from == ("HF_TOKEN",)
    assert made.entrypoint[:2] == ("/bin/sh", "-c")
    assert configured(model, tmp_path, {"HITLAB_VLLM_IMAGE": "ours:2"}, image="mine:1").image == "mine:1"


def test_model_of_the_hub_and_of_the_image(tmp_path: Path) -> None:
    hub = configured("Qwen/Qwen3-0.6B", tmp_path)
    assert hub.command(None)[0] == "Qwen/Qwen3-0.6B"
    assert "HF_HUB_OFFLINE" not in hub.environment
    assert hub.mounts == ()
    demo = configured("builtin:demo", tmp_path)
    assert demo.command("/opt/demo-model")[0] == "/opt/demo-model"
    with pytest.raises(ScenarioError, match="builtin:demo has no model in"):
        demo.command(None)


@pytest.mark.parametrize("absent", ["/nowhere/at/all", "./nowhere"])
def test_absent_model(absent: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"tokenizer.path: .*does not exist"):
        configured(absent, tmp_path)


def test_tokenizer_without_a_model(model: Path, tmp_path: Path) -> None:
    (model / "config.json").unlink()
    with pytest.raises(ScenarioError, match="holds no model"):
        configured(model, tmp_path)


def test_bounds_hold(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"engine.mounts: /etc is under no folder"):
        configured(model, tmp_path, mounts=["/etc"])
    with pytest.raises(ScenarioError, match=r"tokenizer.path: .* is under no folder"):
        configured(model, tmp_path, {"HITLAB_ALLOWED_ROOTS": "/srv"})
    with pytest.raises(ScenarioError, match=r"engine.devices"):
        configured(model, tmp_path, devices=["/dev/sda"])


def test_variables(model: Path, tmp_path: Path) -> None:
    made = configured(model, tmp_path, env_from=["TOKEN"])
    assert secrets_of(made, {"TOKEN": "a=b c", "OTHER": "x"}) == {"TOKEN": "a=b c"}
    with pytest.raises(ScenarioError, match="TOKEN is not set"):
        secrets_of(made, {})
    with pytest.raises(ScenarioError, match="more than one line"):
        secrets_of(made, {"TOKEN": "a\nLD_PRELOAD=b"})
    with pytest.raises(ScenarioError, match="VLLM_SERVER_DEV_MODE is set by HitLab"):
        configured(model, tmp_path, env_from=["VLLM_SERVER_DEV_MODE"])


@pytest.mark.parametrize("flag", ["--port=1", "--api_key", "-dp", "--block-size", "--host=0.0.0.0"])
def test_flags_that_are_said_elsewhere(flag: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"engine.args"):
        scenario("builtin:demo", tmp_path, args=[flag])


@pytest.mark.parametrize(
    "section",
    [
        {"privileged": True},
        {"pid_mode": "host"},
        {"network_mode": "host"},
        {"env_from": ["A=secret"]},
        {"gpus": -1},
        {"gpus": True},
        {"shm_size": "lots"},
        {"kv_cache_gib": 0},
        {"devices": ["dev/x"]},
        {"devices": ["/dev/a:/dev/b:rwm"]},
        {"kind": "podman"},
    ],
)
def test_refused_sections(section: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="engine"):
        scenario("builtin:demo", tmp_path, **section)


def test_identity(model: Path, tmp_path: Path) -> None:
    """Equal for equal engines; another image under the same name, or any other setting, is another engine."""
    first = configured(model, tmp_path).sha256("sha256:1")
    assert configured(model, tmp_path).sha256("sha256:1") == first
    others = [
        configured(model, tmp_path).sha256("sha256:2"),
        configured(model, tmp_path, gpus=2).sha256("sha256:1"),
        configured(model, tmp_path, gpus=["2"]).sha256("sha256:1"),
        configured(model, tmp_path, args=["--enforce-eager"]).sha256("sha256:1"),
        configured(model, tmp_path, shm_size="1g").sha256("sha256:1"),
        configured(model, tmp_path, {"HITLAB_NETWORK": "n"}).sha256("sha256:1"),
    ]
    assert len({first, *others}) == 1 + len(others)


def test_plain_variables_reach_the_engine_and_hitlabs_own_stay(model: Path, tmp_path: Path) -> None:
    made = configured(model, tmp_path, env={"NCCL_DEBUG": "WARN", "LMCACHE_CHUNK_SIZE": "256"})
    assert made.environment["NCCL_DEBUG"] == "WARN"
    assert made.environment["VLLM_SERVER_DEV_MODE"] == "1"
    with pytest.raises(ScenarioError, match=r"engine.env: NCCL_DEBUG is in engine.env_from as well"):
        configured(model, tmp_path, env={"NCCL_DEBUG": "WARN"}, env_from=["NCCL_DEBUG"])


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("9LIVES", "x", "is no name of a variable"),
        ("A B", "x", "is no name of a variable"),
        ("A\n", "x", "is no name of a variable"),
        ("HF_TOKEN", "x", r"env_from: \[HF_TOKEN\]"),
        ("my_api_key", "x", "may be a secret"),
        ("DB_PASSWORD", "x", "may be a secret"),
        ("CLIENT_SECRET", "x", "may be a secret"),
        ("LD_PRELOAD", "/x.so", "may not be set"),
        ("PYTHONPATH", "/x", "may not be set"),
        ("DOCKER_HOST", "x", "may not be set"),
        ("VLLM_SERVER_DEV_MODE", "0", "is set by HitLab"),
        ("HF_HOME", "/x", "is set by HitLab"),
        ("NCCL_DEBUG", "a\nb", "control character"),
        ("NCCL_DEBUG", "a\x7f", "control character"),
    ],
)
def test_variables_that_a_scenario_may_not_set(
    model: Path, tmp_path: Path, name: str, value: str, problem: str
) -> None:
    with pytest.raises(ScenarioError, match=problem) as refused:
        scenario(model, tmp_path, env={name: value})
    assert "engine.env" in str(refused.value)
    assert refused.value.exit_code == 2


def test_what_hitlab_sets_is_what_it_refuses(model: Path, tmp_path: Path) -> None:
    """The list in the contract covers every variable of every container."""
    hub = with_caches(configured("Qwen/Qwen3-0.6B", tmp_path), FakeImage(), {})
    (tmp_path / "hf").mkdir()
    offline = with_caches(configured("Qwen/Qwen3-0.6B", tmp_path, hf_home="hf"), FakeImage(), {})
    own = with_caches(configured(model, tmp_path), FakeImage(), {})
    assert set().union(*(made.environment for made in (hub, offline, own))) == set(VARIABLES_OF_HITLAB)
