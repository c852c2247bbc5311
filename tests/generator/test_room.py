"""No room for a plan or its data is told before they are made."""

import json
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.pre_tokenizers import ByteLevel

from contract.errors import ArtifactError, ScenarioError
from contract.scenario import Scenario, load_scenario
from generator import inspect as inspecting
from generator import prepare as preparing
from generator import room
from generator.inspect import inspect
from generator.prepare import prepare

GIB = 2**30


def written(tmp_path: Path, count: int, length: dict[str, Any], mode: str = "warmup", **groups: Any) -> Path:
    path = tmp_path / "scenario.json"
    document = {
        "run": {"run_id": "r", "output_dir": str(tmp_path / "out" / "deep")},
        "tokenizer": {"path": "builtin:demo", "block_size": 16},
        "corpus": {"path": "builtin:word-problems"},
        "requests": {"count": count, "input_length": length},
        "prefix_cache": {"mode": mode, "target_hit_rate": 0.5, "groups": {"count": 2, **groups}},
        "service": {"model": "m", "dp_size": 2},
    }
    path.write_text(json.dumps(document))
    return path


FIXED = {"mode": "fixed", "value": 2000}


@pytest.mark.parametrize("mode", ["warmup", "cold"])
@pytest.mark.parametrize("build", [inspect, prepare])
def test_a_plan_beyond_memory_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Any, mode: str
) -> None:
    for module in (inspecting, preparing):
        monkeypatch.setattr(module, "build_plan", lambda _: pytest.fail("planned"))
    monkeypatch.setattr(room, "available_memory", lambda: 4 * GIB)
    with pytest.raises(ScenarioError) as raised:
        build(written(tmp_path, 10**8, FIXED, mode))
    needed = {"warmup": 170, "cold": 850}[mode] * 10**8 / GIB
    assert str(raised.value).startswith("requests.count: a plan of 100,000,000 requests takes about")
    assert f"{needed:.1f} GiB of memory, and 4.0 GiB are available" in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_data_beyond_the_disk_is_refused_before_it_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10 * GIB))
    with monkeypatch.context() as unplanned:
        unplanned.setattr(preparing, "build_plan", lambda _: pytest.fail("planned"))
        with pytest.raises(ArtifactError) as raised:
            prepare(written(tmp_path, 10**6, FIXED))
    assert "requests.count: the data of 1,000,000 requests with at least 2,000,000,000 input" in str(
        raised.value
    )
    assert f"11.9 GiB, and {tmp_path} has 10.0 GiB free" in str(raised.value)


def test_what_is_known_only_with_the_plan_is_refused_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shortest length is one token; the lengths drawn add up to more than the disk has."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=300_000))
    ranges = [{"min": 900, "max": 1000, "count": 100}]
    monkeypatch.setattr(preparing, "load_sources", lambda *_, **__: pytest.fail("went on"))
    with pytest.raises(ArtifactError, match="input tokens takes at least"):
        prepare(written(tmp_path, 100, {"mode": "range", "ranges": ranges}))


def scenario(path: Path) -> Scenario:
    return load_scenario(path)


def tokenizer_of_bytes(folder: Path) -> Path:
    """A vocabulary of single bytes: a text has as many tokens as bytes, the most that a token can cost."""
    made = Tokenizer(models.BPE({byte: at for at, byte in enumerate(sorted(ByteLevel.alphabet()))}, []))
    made.pre_tokenizer, made.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


@pytest.mark.parametrize("mode", ["warmup", "cold"])
@pytest.mark.parametrize("length", [40, 2000])
@pytest.mark.parametrize("kind", ["builtin:demo", "bytes"])
def test_data_is_never_smaller_than_what_is_asked_for(
    tmp_path: Path, kind: str, length: int, mode: str
) -> None:
    """Else a scenario that fits would be refused."""
    path = written(tmp_path, 50, {"mode": "fixed", "value": length}, mode)
    if kind == "bytes":
        document = json.loads(path.read_text())
        document["tokenizer"]["path"] = str(tokenizer_of_bytes(tmp_path / "tokenizer"))
        path.write_text(json.dumps(document))
    shown = prepare(path)
    size = sum(Path(shown[name]).stat().st_size for name in ("full", "requests"))
    size += sum(file.stat().st_size for file in Path(shown["full"]).parent.glob("*.arrow"))
    tokens = room.least_tokens(scenario(path))
    assert tokens == 50 * length
    needed = 50 * room.ROW_BYTES + tokens * (2 * room.TEXT_BYTES_PER_TOKEN + room.TOKEN_ID_BYTES)
    assert size / 3 < needed <= size


@pytest.mark.parametrize(
    ("length", "groups", "least"),
    [
        (FIXED, {}, 2000),
        ({"mode": "truncated_normal", "min": 64, "max": 400}, {}, 64),
        ({"mode": "range", "ranges": [{"min": 90, "max": 100, "count": 10}]}, {}, 1),
        (FIXED, {"overrides": {"group-1": {"input_length": {"mode": "fixed", "value": 128}}}}, 128),
    ],
)
def test_the_least_that_requests_can_have(
    tmp_path: Path, length: dict[str, Any], groups: dict[str, Any], least: int
) -> None:
    assert room.least_tokens(scenario(written(tmp_path, 10, length, **groups))) == 10 * least


def test_the_tightest_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_of_machine", lambda: 5 * GIB)
    monkeypatch.setattr(room, "_of_control_group", lambda: None)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert room.available_memory() == 5 * GIB
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4 * GIB, resource.RLIM_INFINITY))
    assert 0 < (room.available_memory() or 0) < 4 * GIB
    monkeypatch.setattr(room, "_of_control_group", lambda: -1)
    assert room.available_memory() == 0


def test_a_control_group_without_a_limit_is_none(tmp_path: Path) -> None:
    assert room._of_control_group(tmp_path) is None
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert room._of_control_group(tmp_path) is None
    (tmp_path / "memory.max").write_text("5000\n")
    assert room._of_control_group(tmp_path) == 4000


def test_a_long_plan_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int | None]] = []
    monkeypatch.setattr(inspecting, "LONG_PLAN", 100)
    for count in (99, 100):
        inspect(written(tmp_path, count, FIXED), progress=lambda *what: told.append(what))
    assert told == [("Plan requests", 0, 100)]
