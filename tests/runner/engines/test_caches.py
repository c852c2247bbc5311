"""What engines keep from run to run: volumes and variables, down to what Docker is asked for."""

import os
from pathlib import Path
from typing import Any

import pytest

from contract.errors import ScenarioError
from contract.scenario import parse_scenario
from runner.engines.vllm.caches import with_caches
from runner.engines.vllm.configuration import Configuration, configuration
from tests.runner.engines.fake_docker import FakeImage

HUB_MODEL = "Qwen/Qwen3-8B"
DIGEST = "vllm/vllm-openai@sha256:0123456789abcdef0123"


def configured(
    tmp_path: Path,
    image: FakeImage,
    environment: dict[str, str] | None = None,
    model: str = HUB_MODEL,
    **engine: Any,
) -> Configuration:
    scenario = parse_scenario(
        {"tokenizer": {"path": model}, "engine": {"kind": "vllm", **engine}}, folder=tmp_path
    )
    wanted = configuration(scenario, tmp_path, environment or {})
    return with_caches(wanted, image, environment or {})


def volumes(made: Configuration) -> dict[str, str]:
    return {volume.target: volume.name for volume in made.volumes}


def test_a_model_of_the_hub_and_what_is_compiled_stay_in_volumes(tmp_path: Path) -> None:
    made = configured(tmp_path, FakeImage(digests=[DIGEST]))
    mine = f"hitlab-{os.getuid()}"
    assert volumes(made) == {
        "/var/cache/hitlab/hub": f"{mine}-hub",
        "/var/cache/hitlab/compiled": f"{mine}-compiled-0123456789ab",
    }
    assert made.environment["HF_HOME"] == "/var/cache/hitlab/hub"
    assert made.environment["VLLM_CACHE_ROOT"] == "/var/cache/hitlab/compiled/vllm"
    assert "HF_HUB_OFFLINE" not in made.environment
    labels = {dict(volume.labels)["com.hitlab.cache"] for volume in made.volumes}
    assert labels == {"hub", "compiled"}
    assert {dict(volume.labels)["com.hitlab.user"] for volume in made.volumes} == {str(os.getuid())}


def test_every_image_compiles_for_itself_and_all_share_the_hub(tmp_path: Path) -> None:
    one, other = (configured(tmp_path, FakeImage(digests=[f"v@sha256:{d * 20}"])) for d in "ab")
    assert volumes(one)["/var/cache/hitlab/hub"] == volumes(other)["/var/cache/hitlab/hub"]
    assert volumes(one)["/var/cache/hitlab/compiled"] != volumes(other)["/var/cache/hitlab/compiled"]
    built_here = FakeImage(digests=[], id="sha256:feedfacefeedface")
    assert volumes(configured(tmp_path, built_here))["/var/cache/hitlab/compiled"].endswith("-feedfacefeed")


def test_a_model_of_the_host_needs_no_hub(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    made = configured(tmp_path, FakeImage(), model=str(tmp_path / "model"))
    assert list(volumes(made)) == ["/var/cache/hitlab/compiled"]
    assert "HF_HOME" not in made.environment
    assert made.environment["HF_HUB_OFFLINE"] == "1"


def test_the_prefix_of_the_names_can_be_set(tmp_path: Path) -> None:
    made = configured(tmp_path, FakeImage(), {"HITLAB_CACHE_PREFIX": "team"})
    assert volumes(made)["/var/cache/hitlab/hub"] == "team-hub"


@pytest.mark.parametrize(
    ("label", "there"), [({}, False), ({"com.hitlab.cache-folders": "/var/cache/hitlab"}, True)]
)
def test_an_image_of_another_user_gets_volumes_only_where_it_has_room_for_them(
    tmp_path: Path, label: dict[str, str], there: bool
) -> None:
    """A new volume is root's: an engine that cannot write there would not start."""
    made = configured(tmp_path, FakeImage(user="vllm", labels=label))
    assert bool(made.volumes) == there
    assert ("VLLM_CACHE_ROOT" in made.environment) == there


@pytest.mark.parametrize("download", [False, True])
def test_the_hosts_hub_cache_in_its_place(tmp_path: Path, download: bool) -> None:
    hub = tmp_path / "hf"
    hub.mkdir()
    made = configured(tmp_path, FakeImage(), {"HF_HOME": str(hub)}, hf_home=str(hub), download=download)
    (mount,) = made.mounts
    assert (mount.source, mount.target, mount.read_only) == (str(hub), "/var/cache/hitlab/hub", not download)
    assert list(volumes(made)) == ["/var/cache/hitlab/compiled"]
    assert made.environment["HF_HOME"] == "/var/cache/hitlab/hub"
    assert ("HF_HUB_OFFLINE" in made.environment) == (not download), (
        "what cannot be written cannot be downloaded into"
    )


def test_a_hub_cache_is_bounded_like_every_mount(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"engine.hf_home: /etc is under no folder"):
        configured(tmp_path, FakeImage(), hf_home="/etc")
    with pytest.raises(ScenarioError, match=r"engine.download: goes with engine.hf_home"):
        configured(tmp_path, FakeImage(), download=True)
    with pytest.raises(ScenarioError, match=r"engine.hf_home: .*does not exist"):
        configured(tmp_path, FakeImage(), hf_home=str(tmp_path / "nowhere"))
