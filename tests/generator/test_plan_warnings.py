"""What inspect and prepare say of a plan before any engine time is spent."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.scenario import parse_scenario
from generator.inspect import inspect
from generator.plan.plan import build_plan
from generator.plan_warnings import plan_warnings
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


def test_a_target_out_of_reach_is_said_with_reason_and_remedy(write: Write) -> None:
    """Blocks of 784, as hybrid models have them, and inputs that hold none beside their own part."""
    lengths = {"mode": "truncated_normal", "min": 800, "max": 1200}
    sections = {
        "tokenizer": {"block_size": 784},
        "prefix_cache": {"mode": "warmup", "target_hit_rate": 0.6},
    }
    (said,) = warnings_of(write(**sections, requests={"count": 40, "input_length": lengths}))
    head, _, value = said.partition("; to reach it set requests.input_length to ")
    assert head.startswith(
        "TARGET_UNREACHABLE: 60.00% requested, at most 0.00% can be reached: a request needs 1568 tokens to share a "
        "block of 784 beside the 784 of its own, and the longest has "
    )
    assert warnings_of(write(**sections, requests={"count": 40, "input_length": json.loads(value)})) == []


@pytest.mark.parametrize(
    ("sections", "reason", "advice"),
    [
        (
            {"prefix_cache": {"mode": "cold", "target_hit_rate": 0.9, "groups": {"count": 40}}},
            "each of 80 lanes (40 groups on 2 ranks) computes its longest prefix once, with 100 requests in all",
            "to reach it set prefix_cache.groups.count to 4",
        ),
        (
            {"requests": {"count": 10}, "prefix_cache": {"mode": "cold", "target_hit_rate": 0.9}},
            "each of 2 lanes (1 groups on 2 ranks)",
            "to reach it set requests.count to 24",
        ),
        (
            {"prefix_cache": {"target_hit_rate": 0.9, "seed_blocks": 20}},
            "320 tokens of every request are its own",
            "to reach it set prefix_cache.seed_blocks to 1",
        ),
        (
            {"prefix_cache": {"target_hit_rate": 0.9, "minimum_non_shared_length": 500}},
            "500 tokens of every request are its own",
            "to reach it set prefix_cache.minimum_non_shared_length to 16",
        ),
        (
            {
                "tokenizer": {"block_size": 784},
                "requests": {"count": 2, "input_length": {"mode": "explicit", "values": [800, 1200]}},
            },
            "the longest has 1200",
            "to reach it set tokenizer.block_size to 256, and start the engine with such blocks",
        ),
        (
            {"prefix_cache": {"target_hit_rate": 1.0}},
            "at most 98.44% can be shared",
            "no other change was found that reaches 100.00%, so set prefix_cache.target_hit_rate to 0.9843 or less",
        ),
    ],
)
def test_what_limits_a_target(sections: dict[str, Any], reason: str, advice: str) -> None:
    scenario = parse_scenario(sections)
    (said,) = plan_warnings(scenario, build_plan(scenario))
    assert said.startswith("TARGET_UNREACHABLE: ")
    assert reason in said
    assert said.endswith(f"; {advice}")


def test_a_target_off_the_grid_is_said(write: Write) -> None:
    coarse = {"tokenizer": {"block_size": 64}, "requests": {"count": 1}}
    (said,) = warnings_of(write(**coarse, prefix_cache={"mode": "warmup"}))
    assert said.startswith("TARGET_DEVIATION: 40.00% requested, 32.00% is the nearest")
