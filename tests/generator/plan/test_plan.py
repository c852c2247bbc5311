"""Plans of whole scenarios."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachemodel.watermark import largest_hit
from contract.errors import ScenarioError
from contract.scenario import Scenario, parse_scenario
from generator.plan.plan import Plan, build_plan


def scenario(**prefix_cache: Any) -> dict[str, Any]:
    return {"requests": {"count": 12}, "prefix_cache": prefix_cache}


def plan_of(raw: dict[str, Any], **options: Any) -> Plan:
    return build_plan(parse_scenario(raw, **options))


def test_default_warmup_plan_of_the_reference() -> None:
    plan = plan_of({})
    assert plan.prefix[:7].tolist() == [38, 39, 38, 39, 38, 38, 39]
    assert plan.total_hit_tokens == 61_440
    assert plan.trajectory.status == "PASS"
    assert plan.rank is None


def test_balanced_example_of_the_reference() -> None:
    plan = plan_of(
        {
            "tokenizer": {"block_size": 4},
            "requests": {"count": 4, "input_length": {"mode": "fixed", "value": 32}},
            "prefix_cache": {"target_hit_rate": 0.5},
        }
    )
    assert (plan.prefix * 4).tolist() == [16, 16, 16, 16]


def test_case_c_target_beyond_reach() -> None:
    lengths = [
        2504, 2150, 3174, 3051, 2962, 2619, 2467, 2404, 3776, 2178,
        2170, 2431, 2943, 3000, 2156, 2862, 3766, 2950, 3887, 3187,
    ]  # fmt: skip
    plan = plan_of(
        {
            "tokenizer": {"block_size": 128},
            "requests": {"count": 20, "input_length": {"mode": "explicit", "values": lengths}},
            "prefix_cache": {"mode": "cold", "target_hit_rate": 0.9},
            "service": {"dp_size": 1},
        }
    )
    assert plan.total_hit_tokens == 48_896
    assert plan.target.reachable is False
    assert plan.target.reason == "target exceeds maximum reachable hit rate"
    assert plan.theoretical_hit_rate == plan.target.reachable_max


def test_cold_routes_each_group_round_robin() -> None:
    plan = plan_of(scenario(mode="cold", groups={"count": 2}, order={"strategy": "interleave"}))
    assert plan.rank is not None
    assert plan.lane_sequence is not None
    for group in range(2):
        members = plan.group == group
        assert plan.rank[members].tolist() == [0, 1, 0, 1, 0, 1]
        assert plan.lane_sequence[members].tolist() == [0, 0, 1, 1, 2, 2]
        assert plan.occurrence[members].tolist() == list(range(6))


@pytest.mark.parametrize(
    ("strategy", "groups"),
    [
        ("sequential", [0] * 6 + [1] * 6),
        ("interleave", [0, 1] * 6),
        ("within_group_shuffle", [0] * 6 + [1] * 6),
        ("input_len_asc", [0, 1] * 6),
    ],
)
def test_orders(strategy: str, groups: list[int]) -> None:
    raw = scenario(groups={"count": 2}, order={"strategy": strategy})
    raw["requests"]["input_length"] = {"mode": "truncated_normal", "min": 64, "max": 900}
    plan = plan_of(raw)
    assert plan.group.tolist() == groups
    assert sorted(plan.request.tolist()) == list(range(12))
    if strategy == "input_len_asc":
        for group in range(2):
            lengths = plan.input_tokens[plan.group == group]
            assert (np.diff(lengths) >= 0).all()
    if strategy == "sequential":
        assert plan.request.tolist() == list(range(12))


def test_global_shuffle_is_one_reproducible_shuffle() -> None:
    raw = scenario(groups={"count": 3}, order={"strategy": "global_shuffle"})
    one, two = plan_of(raw), plan_of(raw)
    assert one.request.tolist() == two.request.tolist() != list(range(12))
    other = plan_of(raw | {"run": {"random_seed": 43}})
    assert other.request.tolist() != one.request.tolist()


def test_groups_go_by_number_not_by_spelling() -> None:
    plan = plan_of(scenario(groups={"count": 12}, order={"strategy": "interleave"}))
    assert [plan.groups[group].name for group in plan.group.tolist()] == [f"group-{n}" for n in range(12)]


def test_groups_without_requests_do_not_exist() -> None:
    plan = plan_of(scenario(groups={"count": 3, "assignment": {"mode": "weights", "weights": [1, 0, 1]}}))
    assert [group.name for group in plan.groups] == ["group-0", "group-2"]
    assert [group.stream for group in plan.groups] == [0, 1]


@pytest.mark.parametrize(
    ("assignment", "count", "sizes"),
    [
        ({"mode": "uniform"}, 3, [4, 3, 3]),
        ({"mode": "zipf", "exponent": 1.0}, 3, [5, 3, 2]),
        ({"mode": "weights", "weights": [0.5, 0.3, 0.15, 0.05]}, 4, [5, 3, 2, 0]),
    ],
)
def test_group_sizes_round_to_the_largest_remainder(
    assignment: dict[str, Any], count: int, sizes: list[int]
) -> None:
    plan = plan_of(
        {
            "requests": {"count": 10},
            "prefix_cache": {"groups": {"count": count, "assignment": assignment}},
        }
    )
    assert [group.size for group in plan.groups] == [size for size in sizes if size]


def test_overrides_travel_with_their_group() -> None:
    raw = scenario(
        groups={
            "count": 2,
            "overrides": {
                "group-1": {
                    "input_length": {"mode": "fixed", "value": 2048},
                    "output_length": {"mode": "fixed", "value": 5},
                }
            },
        }
    )
    plan = plan_of(raw)
    assert set(plan.input_tokens[plan.group == 1].tolist()) == {2048}
    assert set(plan.output_tokens[plan.group == 1].tolist()) == {5}
    assert set(plan.input_tokens[plan.group == 0].tolist()) == {1024}


def test_length_draws_are_those_of_the_reference_streams() -> None:
    """random.Random of the seed, in the order the reference gives; figures are Python's, drawn by hand here."""
    import random

    raw = {
        "requests": {
            "count": 5,
            "input_length": {
                "mode": "range",
                "ranges": [{"min": 100, "max": 200, "count": 2}, {"min": 300, "max": 400, "count": 3}],
            },
            "output_length": {"mode": "uniform", "min": 1, "max": 50},
        },
        "prefix_cache": {"order": {"strategy": "sequential"}},
        "run": {"random_seed": 7},
    }
    inputs, outputs = random.Random(7), random.Random(8)
    plan = plan_of(raw)
    assert plan.input_tokens.tolist() == [
        inputs.randint(100, 200),
        inputs.randint(100, 200),
        inputs.randint(300, 400),
        inputs.randint(300, 400),
        inputs.randint(300, 400),
    ]
    assert plan.output_tokens.tolist() == [outputs.randint(1, 50) for _ in range(5)]


def test_csv_lengths(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("input_tokens\n" + "\n".join(str(64 + n) for n in range(12)))
    raw = scenario(order={"strategy": "sequential"})
    raw["requests"]["input_length"] = {"mode": "csv", "path": "in.csv"}
    assert plan_of(raw, folder=tmp_path).input_tokens.tolist() == [64 + n for n in range(12)]


def test_a_normal_that_never_falls_into_its_bounds() -> None:
    raw = scenario()
    raw["requests"]["input_length"] = {
        "mode": "truncated_normal", "min": 64, "max": 128, "mean": 100_000, "std": 1,
    }  # fmt: skip
    with pytest.raises(ScenarioError, match=r"requests.input_length: 0 of 1200 draws .* move the mean"):
        plan_of(raw)


lengths = st.one_of(
    st.builds(lambda value: {"mode": "fixed", "value": value}, st.integers(64, 3000)),
    st.builds(
        lambda low, width: {"mode": "truncated_normal", "min": low, "max": low + width},
        st.integers(64, 500),
        st.integers(0, 2000),
    ),
)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    count, groups = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    seed_blocks = draw(st.integers(1, 2))
    return parse_scenario(
        {
            "run": {"random_seed": draw(st.integers(-5, 10**9))},
            "tokenizer": {"block_size": draw(st.sampled_from([1, 16, 32]))},
            "requests": {"count": count, "input_length": draw(lengths)},
            "prefix_cache": {
                "mode": draw(st.sampled_from(["cold", "warmup"])),
                "target_hit_rate": draw(st.floats(0, 1)),
                "seed_blocks": seed_blocks,
                "groups": {
                    "count": groups,
                    "assignment": draw(
                        st.sampled_from([{"mode": "uniform"}, {"mode": "zipf", "exponent": 1.5}])
                    ),
                },
                "order": {
                    "strategy": draw(
                        st.sampled_from(
                            [
                                "sequential",
                                "within_group_shuffle",
                                "interleave",
                                "global_shuffle",
                                "input_len_asc",
                            ]
                        )
                    )
                },
            },
            "service": {"dp_size": draw(st.integers(1, 4))},
        }
    )


@given(scenarios())
def test_every_scenario_that_loads_plans_and_meets_its_effective_target(scenario: Scenario) -> None:
    plan = build_plan(scenario)
    block = plan.block_size
    assert plan.total_hit_tokens == plan.target.hit_blocks * block
    assert plan.theoretical_hit_rate == plan.target.effective_rate
    assert 0 <= plan.target.effective_rate <= plan.target.reachable_max <= 1
    assert (plan.prefix * block + scenario.minimum_non_shared_length <= plan.input_tokens).all()
    assert sum(group.hit_tokens for group in plan.groups) == plan.total_hit_tokens
    for index, group in enumerate(plan.groups):
        members = plan.group == index
        assert group.size == int(members.sum())
        assert group.hit_tokens <= group.reachable_max * group.input_tokens + 1e-6
    # The theory once more, request by request, from what the rows will say.
    level: dict[tuple[int, int], int] = {}
    for at in range(plan.count):
        lane = (int(plan.group[at]), -1 if plan.rank is None else int(plan.rank[at]))
        start = plan.groups[lane[0]].max_prefix_blocks if plan.rank is None else 0
        before = level.get(lane, start)
        assert int(plan.watermarks.before[at]) == before
        assert int(plan.watermarks.hit[at]) == min(int(plan.prefix[at]), before)
        level[lane] = max(before, int(plan.prefix[at]))
    if plan.rank is None:
        # Above the line by less than half a block, unless what is left could not make up for less.
        caps = (plan.input_tokens - scenario.minimum_non_shared_length) // block
        hits, seen = np.cumsum(plan.prefix), np.cumsum(plan.input_tokens)
        line = plan.target.hit_blocks * seen / seen[-1]
        forced = plan.target.hit_blocks - (caps.sum() - np.cumsum(caps))
        assert (hits <= np.maximum(line + 0.5, forced)).all()


def test_plans_are_columns_of_plain_integers() -> None:
    plan = plan_of(scenario(mode="cold"))
    for name in ("request", "group", "occurrence", "input_tokens", "output_tokens", "prefix"):
        assert getattr(plan, name).dtype == np.int64
    assert largest_hit(plan.prefix, plan.lane) == plan.target.hit_blocks
    json.dumps(plan.prefix.tolist())
