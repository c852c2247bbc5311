"""The model against what vLLM's own cache classes did, release by release.

`vllm_outcomes.json` was written by tests/real/cache_classes.py with KVCacheManager and BlockPool of vLLM 0.10.2, 0.11.2,
0.16.0, 0.18.1, 0.19.0, 0.19.1, 0.23.0, 0.24.0, 0.30.0 and 0.32.0; all of one range answered every operation alike.
"""

import json
from pathlib import Path

import pytest

from cachemodel.releases import PoolRules, pool_rules, release_not_known
from contract.engine_version import parse_version
from tests.cachemodel.walks import (
    CROWDED_BLOCKS,
    CROWDED_SIZE,
    SEQUENTIAL_BLOCKS,
    SEQUENTIAL_SIZE,
    ModelCache,
    crowded_walk,
    sequential_walk,
)

OUTCOMES = json.loads(Path(__file__).with_name("vllm_outcomes.json").read_text())
RANGES = {name: tuple(name.split(" to ")) for name in OUTCOMES}


def rules_of(version: str) -> PoolRules:
    return pool_rules(parse_version(version))


@pytest.mark.parametrize("blocks", SEQUENTIAL_BLOCKS)
@pytest.mark.parametrize("releases", ["0.19.0 to 0.23.0", "0.24.0 to 0.32.0"])
def test_evictions_are_those_of_the_release(releases: str, blocks: int) -> None:
    found = sequential_walk(ModelCache(blocks, SEQUENTIAL_SIZE, rules_of(RANGES[releases][0])))
    assert found.document() == OUTCOMES[releases][f"sequential-{blocks}"]


@pytest.mark.parametrize("releases", RANGES)
def test_requests_side_by_side_are_admitted_as_the_release_does(releases: str) -> None:
    found = crowded_walk(ModelCache(CROWDED_BLOCKS, CROWDED_SIZE, rules_of(RANGES[releases][0])))
    assert found.document() == OUTCOMES[releases]["crowded"]


def test_the_orders_differ_in_every_pool_that_evicts() -> None:
    old, new = OUTCOMES["0.19.0 to 0.23.0"], OUTCOMES["0.24.0 to 0.32.0"]
    for blocks in SEQUENTIAL_BLOCKS:
        name = f"sequential-{blocks}"
        assert 1.02 < new[name]["hits"] / old[name]["hits"] < 1.06, "2 to 6 % too high"


def test_whole_prompts_are_asked_for_since_0_19() -> None:
    assert OUTCOMES["0.10.2 to 0.18.1"]["crowded"] != OUTCOMES["0.19.0 to 0.23.0"]["crowded"]
    for name, outcome in OUTCOMES["0.10.2 to 0.18.1"].items():
        assert name == "crowded" or outcome == OUTCOMES["0.19.0 to 0.23.0"][name]


@pytest.mark.parametrize(
    ("version", "hashless_first", "whole_prompt"),
    [
        ("0.8.5", False, False),
        ("0.11.2", False, False),
        ("0.16.0", False, False),
        ("0.18.1", False, False),
        ("0.19.0", False, True),
        ("0.23.0", False, True),
        ("0.24.0rc1", False, True),
        ("0.24.0", True, True),
        ("0.32.0+cpu", True, True),
        ("1.0.0", True, True),
    ],
)
def test_rules_by_version(version: str, hashless_first: bool, whole_prompt: bool) -> None:
    assert rules_of(version) == PoolRules(hashless_first, whole_prompt)
    assert release_not_known(version) is None


@pytest.mark.parametrize("version", [None, "", "nightly", "0.1.dev1+g0123abc"])
def test_a_version_that_tells_nothing_is_said(version: str | None) -> None:
    assert pool_rules(parse_version(version)) == PoolRules()
    assert "is assumed" in str(release_not_known(version))
