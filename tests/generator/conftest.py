"""Small prepared data on the built-in tokenizer and corpus."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.run_directory import RunDirectory
from generator.prepare import prepare

Prepare = Callable[..., RunDirectory]


def small_scenario(**sections: Any) -> dict[str, Any]:
    return {
        "run": {"run_id": "small", "output_dir": "out"},
        "tokenizer": {"path": "builtin:demo", "block_size": 16},
        "corpus": {"path": "builtin:word-problems"},
        "requests": {
            "count": 8,
            "input_length": {"mode": "truncated_normal", "min": 48, "max": 160},
            "output_length": {"mode": "uniform", "min": 1, "max": 9},
        },
        "prefix_cache": {"target_hit_rate": 0.5, "groups": {"count": 2}},
        **sections,
    }


@pytest.fixture
def write_scenario(tmp_path: Path) -> Callable[..., Path]:
    def write(**sections: Any) -> Path:
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(small_scenario(**sections)))
        return path

    return write


@pytest.fixture
def prepared(write_scenario: Callable[..., Path]) -> Prepare:
    def make(**sections: Any) -> RunDirectory:
        return RunDirectory.of_manifest(Path(prepare(write_scenario(**sections))["manifest"]))

    return make
