"""What inspect and prepare say of a plan before any engine time is spent."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from generator.inspect import inspect
from generator.prepare import prepare

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A scenario of 60 requests of 200 tokens, with these sections changed."""

    def scenario(**sections: Any) -> Path:
        document: dict[str, Any] = {
            "run": {"run_id": "w", "output_dir": str(tmp_path / "out")},
            "tokenizer": {"path": "builtin:demo", "block_size": 16},
            "corpus": {"path": "builtin:word-problems"},
            "requests": {"count": 60, "input_length": {"mode": "fixed", "value": 200}},
            "prefix_cache": {"mode": "cold", "target_hit_rate": 0.4, "groups": {"count": 4}},
            "service": {"model": "m", "dp_size": 8},
            "driver": {"kind": "native", "concurrency": 32},
        }
        for name, fields in sections.items():
            document[name] = {**document[name], **fields}
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(document))
        return path

    return scenario


def warnings_of(path: Path) -> list[str]:
    """What inspect and prepare say, which is the same, and is in both logs."""
    inspected: list[str] = []
    prepared: list[str] = []
    logs = [
        Path(inspect(path, warn=inspected.append)["log"]),
        Path(prepare(path, warn=prepared.append)["log"]),
    ]
    assert inspected == prepared
    for log in logs:
        for warning in inspected:
            assert warning in log.read_text()
    return inspected


def test_fewer_lanes_than_the_concurrency_are_said(write: Write) -> None:
    (said,) = warnings_of(write(driver={"concurrency": 160}))
    assert said == "CONCURRENCY_NOT_REACHED: 32 of 160: 8 ranks x 4 groups are 32 lanes, one request each"
    assert warnings_of(write()) == []


def test_without_lanes_nothing_limits_the_concurrency(write: Write) -> None:
    assert warnings_of(write(driver={"concurrency": 160}, prefix_cache={"mode": "warmup"})) == []
