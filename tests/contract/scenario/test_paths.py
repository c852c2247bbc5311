"""Which files a scenario needs, against scenarios written by hand."""

from pathlib import Path
from typing import Any

import pytest

from contract.errors import ScenarioError
from contract.scenario.paths import NeededPath, check_mounted, needed_paths

FOLDER = Path("/work-of-a-user/scenarios")


def found(document: Any, folder: Path = FOLDER) -> dict[str, str]:
    return {needed.field: str(needed.path) for needed in needed_paths(document, folder)}


def test_an_empty_scenario_needs_what_the_defaults_name() -> None:
    assert found({}) == {
        "corpus.path": f"{FOLDER}/GSM8K.jsonl",
        "tokenizer.path": "/home/weights/Qwen3.6-27B",
    }


def test_every_place_that_names_a_file_to_read() -> None:
    document = {
        "run": {"output_dir": "/out"},
        "corpus": {"path": "../data/a.jsonl"},
        "tokenizer": {"path": "/models/Qwen"},
        "requests": {
            "input_length": {"mode": "csv", "path": "in.csv"},
            "output_length": {"mode": "csv", "path": "/csv/out.csv"},
        },
        "prefix_cache": {"groups": {"overrides": {"group-1": {"input_length": {"path": "one.csv"}}}}},
        "engine": {"kind": "vllm", "mounts": ["/adapters/one"]},
        "service": {"ca_file": "ca.pem", "client_cert": "/keys/client.pem", "client_key": "/keys/client.key"},
        "aisbench": {"config": "/elsewhere/config.py", "work_dir": "/elsewhere"},
        "multimodal": {"mmmu_parquet_dir": "/elsewhere/mmmu"},
    }
    assert found(document) == {
        "corpus.path": "/work-of-a-user/data/a.jsonl",
        "requests.input_length.path": f"{FOLDER}/in.csv",
        "requests.output_length.path": "/csv/out.csv",
        "prefix_cache.groups.overrides.group-1.input_length.path": f"{FOLDER}/one.csv",
        "tokenizer.path": "/models/Qwen",
        "aisbench.config": "/elsewhere/config.py",
        "engine.mounts": "/adapters/one",
        "service.ca_file": f"{FOLDER}/ca.pem",
        "service.client_cert": "/keys/client.pem",
        "service.client_key": "/keys/client.key",
    }


@pytest.mark.parametrize("name", ["builtin:demo", "Qwen/Qwen3-8B", "tokenizer"])
def test_names_that_are_no_files(name: str) -> None:
    assert found({"tokenizer": {"path": name}, "corpus": {"path": "builtin:word-problems"}}) == {}


def test_a_link_counts_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "GSM8K.jsonl").symlink_to("/mnt/data/GSM8K.jsonl")
    assert found({"tokenizer": {"path": "builtin:demo"}}, tmp_path) == {
        "corpus.path": "/mnt/data/GSM8K.jsonl"
    }


@pytest.mark.parametrize(
    "broken",
    [
        [],
        "text",
        None,
        {"corpus": 3, "tokenizer": [], "engine": "vllm"},
        {"prefix_cache": {"groups": {"overrides": 1}}},
    ],
)
def test_what_is_wrong_otherwise_is_for_the_loader_to_say(broken: Any) -> None:
    assert all(needed.path.is_absolute() for needed in needed_paths(broken, FOLDER))


def test_every_uncovered_path_has_its_line_and_its_setting() -> None:
    paths = [
        NeededPath("corpus.path", Path("/data/x/a.jsonl"), "DATA_DIR"),
        NeededPath("requests.input_length.path", Path("/database/in.csv"), "DATA_DIR"),
        NeededPath("tokenizer.path", Path("/models/Qwen"), "MODELS_DIR"),
    ]
    check_mounted(paths, [Path("/data"), Path("/database"), Path("/models/Qwen")])
    with pytest.raises(ScenarioError) as told:
        check_mounted(paths, [Path("/data")])
    first, second = str(told.value).splitlines()
    assert first.startswith("requests.input_length.path: /database/in.csv ")
    assert "DATA_DIR" in first
    assert second.startswith("tokenizer.path: /models/Qwen ")
    assert "MODELS_DIR" in second
