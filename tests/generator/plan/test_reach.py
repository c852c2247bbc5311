"""What is advised for a target out of reach does reach it, whatever the scenario."""

import copy
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.scenario import parse_scenario
from generator.plan.plan import build_plan, layout
from generator.plan.reach import change_to_reach, why_not_reached
from generator.plan_warnings import plan_warnings

SHORTEST = 800


@st.composite
def lengths(draw: st.DrawFn, count: int) -> dict[str, Any]:
    mode = draw(st.sampled_from(["fixed", "explicit", "range", "truncated_normal"]))
    tokens = st.integers(SHORTEST, 4000)
    low, high = sorted((draw(tokens), draw(tokens)))
    if mode == "fixed":
        return {"mode": mode, "value": low}
    if mode == "explicit":
        return {"mode": mode, "values": draw(st.lists(tokens, min_size=count, max_size=count))}
    if mode == "range":
        first = draw(st.integers(1, count))
        counts = [first, count - first] if first < count else [count]
        return {"mode": mode, "ranges": [{"min": low, "max": high, "count": part} for part in counts]}
    shape = {"mean": (low + high) / 2, "std": 90.5} if draw(st.booleans()) else {}
    return {"mode": mode, "min": low, "max": high, **shape}


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    count, groups = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    assignment = draw(
        st.sampled_from(
            [{"mode": "uniform"}, {"mode": "zipf"}, {"mode": "weights", "weights": [1.0] * groups}]
        )
    )
    overrides = {"group-0": {"input_length": {"mode": "fixed", "value": 900}}} if draw(st.booleans()) else {}
    block = draw(st.sampled_from([4, 16, 64, 200, 784]))
    seed = draw(st.integers(1, SHORTEST // block))
    own = draw(st.one_of(st.none(), st.integers(seed * block, SHORTEST)))
    return {
        "tokenizer": {"block_size": block},
        "requests": {"count": count, "input_length": draw(lengths(count))},
        "prefix_cache": {
            "mode": draw(st.sampled_from(["cold", "warmup"])),
            "target_hit_rate": draw(st.one_of(st.just(1.0), st.floats(0.3, 1))),
            "seed_blocks": seed,
            "minimum_non_shared_length": own,
            "groups": {"count": groups, "assignment": assignment, "overrides": overrides},
        },
        "service": {"dp_size": draw(st.integers(1, 4))},
    }


def most(raw: dict[str, Any]) -> float:
    """The highest hit rate, counted one by one: every prefix as long as it may be, in cold mode once for nothing."""
    scenario = parse_scenario(raw)
    plan, block, total = build_plan(scenario), scenario.tokenizer.block_size, 0
    longest: dict[tuple[int, int], int] = defaultdict(int)
    for position, (group, tokens) in enumerate(
        zip(plan.group.tolist(), plan.input_tokens.tolist(), strict=True)
    ):
        blocks = (tokens - scenario.minimum_non_shared_length) // block
        total += blocks
        if plan.rank is not None:
            lane = (group, int(plan.rank[position]))
            longest[lane] = max(longest[lane], blocks)
    return (total - sum(longest.values())) * block / plan.total_input_tokens


@settings(max_examples=150, deadline=None)
@given(scenarios())
def test_the_advised_change_reaches_the_target(raw: dict[str, Any]) -> None:
    scenario = parse_scenario(raw)
    said = [line for line in plan_warnings(scenario, build_plan(scenario)) if "TARGET_UNREACHABLE" in line]
    target = raw["prefix_cache"]["target_hit_rate"]
    assert bool(said) is (most(raw) < target)
    if not said:
        return
    found = layout(scenario)
    change = change_to_reach(scenario, found)
    assert change.field in said[0]
    assert why_not_reached(scenario, found) in said[0]
    changed = copy.deepcopy(raw)
    *sections, field = change.field.split(".")
    place = changed
    for section in sections:
        place = place[section]
    assert place.get(field) != change.value
    place[field] = change.value
    assert most(changed) >= changed["prefix_cache"]["target_hit_rate"]
    after = build_plan(parse_scenario(changed))
    assert after.target.reachable
    if change.field != "prefix_cache.target_hit_rate":
        assert abs(after.theoretical_hit_rate - target) * after.total_input_tokens <= after.block_size / 2 + 1


def test_advice_lays_out_no_more_than_a_bounded_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario of millions is told what it can reach instead of being laid out a dozen times."""
    scenario = parse_scenario(
        {
            "tokenizer": {"block_size": 16},
            "requests": {"count": 90, "input_length": {"mode": "fixed", "value": 1000}},
            "prefix_cache": {"mode": "cold", "target_hit_rate": 0.9, "groups": {"count": 30}},
            "service": {"model": "m", "dp_size": 2},
        }
    )
    found = layout(scenario)
    assert change_to_reach(scenario, found).field == "prefix_cache.groups.count"
    monkeypatch.setattr("generator.plan.reach.MOST_LAID_OUT", 89)
    monkeypatch.setattr("generator.plan.reach.layout", lambda _: pytest.fail("laid out"))
    least = change_to_reach(scenario, found)
    assert least.field == "prefix_cache.target_hit_rate"
    assert 0 < least.value <= found.target.reachable_max
