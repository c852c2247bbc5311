"""The plan of a scenario: one row per request, as columns in the order of sending."""

from dataclasses import dataclass

import numpy as np

from cachemodel.watermark import (
    Integers,
    Target,
    Watermarks,
    capacity,
    largest_hit,
    nearest_target,
    requests_by_lane,
    watermarks,
)
from contract.scenario import Scenario
from contract.scenario.group_sizes import group_sizes
from generator.plan.cold import ColdProblem, solve
from generator.plan.lengths import draw_lengths
from generator.plan.order import assign_groups, order_requests
from generator.plan.trajectory import Trajectory, judge
from generator.plan.warmup import balanced_prefixes

INPUT_SEED, OUTPUT_SEED, GROUP_SEED, ORDER_SEED = 0, 1, 2, 4
OVERRIDE_INPUT_SEED, OVERRIDE_OUTPUT_SEED, POOL_SEED = 100, 200, 300
"""Offsets to run.random_seed of the random streams (reference 2.1)."""


@dataclass(frozen=True)
class Group:
    """A prefix group that has requests. `stream` numbers its random streams; reachability is over its own tokens."""

    name: str
    stream: int
    size: int
    max_prefix_blocks: int
    reachable_max: float
    input_tokens: int
    hit_tokens: int

    @property
    def theoretical_hit_rate(self) -> float:
        return self.hit_tokens / self.input_tokens


@dataclass(frozen=True)
class Plan:
    """Columns (int64, one entry per request, order of sending) and what they add up to.

    `request` is the request's number before ordering, `group` an index into `groups`. `rank` and `lane_sequence` are
    None in warmup mode, where the server balances. `prefix` and `watermarks` count blocks.
    """

    mode: str
    block_size: int
    dp_size: int
    request: Integers
    group: Integers
    occurrence: Integers
    rank: Integers | None
    lane_sequence: Integers | None
    input_tokens: Integers
    output_tokens: Integers
    prefix: Integers
    watermarks: Watermarks
    groups: tuple[Group, ...]
    target: Target
    trajectory: Trajectory

    @property
    def count(self) -> int:
        return int(self.request.size)

    @property
    def total_input_tokens(self) -> int:
        return int(self.input_tokens.sum())

    @property
    def hit_tokens(self) -> Integers:
        return self.watermarks.hit * self.block_size

    @property
    def total_hit_tokens(self) -> int:
        return int(self.hit_tokens.sum())

    @property
    def theoretical_hit_rate(self) -> float:
        return self.total_hit_tokens / self.total_input_tokens

    @property
    def lane(self) -> Integers | None:
        """Number of each request's (group, rank) lane; None in warmup mode."""
        return None if self.rank is None else self.group * self.dp_size + self.rank


@dataclass(frozen=True)
class Layout:
    """A plan before anything is solved: its requests, in the order of sending, and what they can reach.

    `names` and `sizes` are those of the groups that have requests. `rank` and `lane` are None in warmup mode.
    `capacities` and what `largest_hit` counts are blocks.
    """

    names: list[str]
    sizes: list[int]
    request: Integers
    group: Integers
    occurrence: Integers
    rank: Integers | None
    lane: Integers | None
    input_tokens: Integers
    output_tokens: Integers
    capacities: Integers
    target: Target


def layout(scenario: Scenario) -> Layout:
    """The requests of a checked text scenario. Linear in their number."""
    names, sizes, group, order, input_tokens, output_tokens = _requests(scenario)
    block_size, dp_size = scenario.tokenizer.block_size, scenario.service.dp_size
    group, input_tokens, output_tokens = group[order], input_tokens[order], output_tokens[order]
    occurrence = _occurrence(group)
    rank = occurrence % dp_size if scenario.prefix_cache.mode == "cold" else None
    lane = None if rank is None else group * dp_size + rank
    capacities = capacity(input_tokens, scenario.minimum_non_shared_length, block_size)
    target = nearest_target(
        scenario.prefix_cache.target_hit_rate,
        int(input_tokens.sum()),
        largest_hit(capacities, lane),
        block_size,
    )
    return Layout(
        names,
        sizes,
        order,
        group,
        occurrence,
        rank,
        lane,
        input_tokens,
        output_tokens,
        capacities,
        target,
    )


def build_plan(scenario: Scenario) -> Plan:
    """The plan of a checked text scenario. Linear in the number of requests; needs no tokenizer and no corpus."""
    found = layout(scenario)
    block_size, dp_size, mode = (
        scenario.tokenizer.block_size,
        scenario.service.dp_size,
        scenario.prefix_cache.mode,
    )
    names, sizes, group, rank, lane = found.names, found.sizes, found.group, found.rank, found.lane
    input_tokens, capacities, target = found.input_tokens, found.capacities, found.target
    if lane is None:
        prefix = balanced_prefixes(input_tokens, capacities, target.hit_blocks)
        primed = np.zeros(len(names), dtype=np.int64)
        np.maximum.at(primed, group, prefix)
        marks = watermarks(prefix, group, primed)
        strategy, proven = "balanced", True
    else:
        dense = np.unique(lane, return_inverse=True)[1].astype(np.int64)
        cold = solve(ColdProblem(input_tokens, capacities, dense, target.hit_blocks))
        prefix, strategy, proven = cold.prefix, cold.strategy, cold.smallest_overshoot_proven
        marks = watermarks(prefix, lane)
    if int(marks.hit.sum()) != target.hit_blocks or bool((prefix > capacities).any()):
        raise AssertionError(
            "the solver's plan does not meet its target"
        )  # a fault of ours, never the user's
    return Plan(
        mode=mode,
        block_size=block_size,
        dp_size=dp_size,
        request=found.request,
        group=group,
        occurrence=found.occurrence,
        rank=rank,
        lane_sequence=None if rank is None else found.occurrence // dp_size,
        input_tokens=input_tokens,
        output_tokens=found.output_tokens,
        prefix=prefix,
        watermarks=marks,
        groups=_groups(names, sizes, group, rank, input_tokens, capacities, prefix, marks, block_size),
        target=target,
        trajectory=judge(
            strategy,
            marks.hit,
            input_tokens,
            lane,
            hit_blocks=target.hit_blocks,
            block_size=block_size,
            proven=proven,
        ),
    )


def _requests(
    scenario: Scenario,
) -> tuple[list[str], list[int], Integers, Integers, Integers, Integers]:
    """Names and sizes of the groups that have requests; group, order, input and output tokens per request."""
    seed, groups, requests = scenario.run.random_seed, scenario.prefix_cache.groups, scenario.requests
    all_sizes = group_sizes(requests.count, groups)
    numbers = [number for number, size in enumerate(all_sizes) if size]
    names, sizes = [f"group-{number}" for number in numbers], [all_sizes[number] for number in numbers]
    assigned = np.array(assign_groups(sizes, groups, seed + GROUP_SEED), dtype=np.int64)
    inputs = np.array(
        draw_lengths(requests.input_length, requests.count, seed + INPUT_SEED, "requests.input_length"),
        dtype=np.int64,
    )
    outputs = np.array(
        draw_lengths(requests.output_length, requests.count, seed + OUTPUT_SEED, "requests.output_length"),
        dtype=np.int64,
    )
    for index, name in enumerate(names):
        override = groups.overrides.get(name)
        if override is None:
            continue
        members, path = np.flatnonzero(assigned == index), f"prefix_cache.groups.overrides.{name}"
        if override.input_length is not None:
            inputs[members] = draw_lengths(
                override.input_length,
                sizes[index],
                seed + OVERRIDE_INPUT_SEED + index,
                f"{path}.input_length",
            )
        if override.output_length is not None:
            outputs[members] = draw_lengths(
                override.output_length,
                sizes[index],
                seed + OVERRIDE_OUTPUT_SEED + index,
                f"{path}.output_length",
            )
    order = order_requests(
        scenario.prefix_cache.order.strategy, assigned.tolist(), inputs.tolist(), seed + ORDER_SEED
    )
    return names, sizes, assigned, np.array(order, dtype=np.int64), inputs, outputs


def _occurrence(group: Integers) -> Integers:
    """How many requests of the same group came before."""
    occurrence = np.zeros_like(group)
    for members in requests_by_lane(group):
        occurrence[members] = np.arange(members.size)
    return occurrence


def _groups(
    names: list[str],
    sizes: list[int],
    group: Integers,
    rank: Integers | None,
    input_tokens: Integers,
    capacities: Integers,
    prefix: Integers,
    marks: Watermarks,
    block_size: int,
) -> tuple[Group, ...]:
    summaries = []
    for index, (name, size, members) in enumerate(zip(names, sizes, requests_by_lane(group), strict=True)):
        tokens = int(input_tokens[members].sum())
        reachable = largest_hit(capacities[members], None if rank is None else rank[members])
        summaries.append(
            Group(
                name=name,
                stream=index,
                size=size,
                max_prefix_blocks=int(prefix[members].max()),
                reachable_max=reachable * block_size / tokens,
                input_tokens=tokens,
                hit_tokens=int(marks.hit[members].sum()) * block_size,
            )
        )
    return tuple(summaries)
