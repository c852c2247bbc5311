"""The same scenarios say and write the same as before, but for what `normalise` blanks."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hitlab.same_outputs.__main__ import RECORDED
from tests.hitlab.same_outputs.scenarios import SCENARIOS, outcome

ANEW = "if that is meant: python -m tests.hitlab.same_outputs {name}, a line in CHANGELOG.md, and commit both"


def differences(before: Any, after: Any, where: str = "") -> list[str]:
    """Places where two documents differ, each with both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        order = (
            []
            if list(before) == list(after) or set(before) != set(after)
            else [f"{where}: other order of keys"]
        )
        keys = [*before, *(key for key in after if key not in before)]
        missing = "nothing"
        return order + [
            line
            for key in keys
            for line in differences(before.get(key, missing), after.get(key, missing), f"{where}/{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            line
            for number, (first, second) in enumerate(zip(before, after, strict=True))
            for line in differences(first, second, f"{where}/{number}")
        ]
    return [] if before == after else [f"{where}: was {before!r}, is {after!r}"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_outputs_as_before(name: str, tmp_path: Path) -> None:
    before = json.loads((RECORDED / f"{name}.json").read_text())
    after = json.loads(json.dumps(outcome(name, tmp_path)))
    found = differences(before, after)
    assert not found, "\n".join([*found[:40], ANEW.format(name=name)])


def test_every_difference_is_told() -> None:
    assert differences({"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 2]}) == []
    assert differences({"a": 1, "b": [1, 2]}, {"b": [1, 3], "a": 1}) == [
        ": other order of keys",
        "/b/1: was 2, is 3",
    ]
    assert differences({"a": [1]}, {"a": [1, 2], "c": 0}) == [
        "/a: was [1], is [1, 2]",
        "/c: was 'nothing', is 0",
    ]
