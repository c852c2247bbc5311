"""A target that a plan cannot reach: what limits it, and one change of the scenario that would reach it.

Two things limit a plan. Of every request a part is its own and prefixes are whole blocks: that bounds what it can share
(`shareable`). And in cold mode each lane has to compute its longest prefix once. Whatever is advised has been laid out
before: a change counts only if the target is in reach of the scenario that has it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract.errors import ScenarioError
from contract.scenario import InputLength, OutputLength, Scenario
from generator.plan.plan import Layout, layout

LONGEST_INPUT = 131_072
"""Tokens beyond which longer inputs are no advice, unless the scenario's own are about as long."""
SMALLEST_BLOCK = 8
"""Engines have no smaller blocks."""
MOST_REQUESTS = 1_000_000
MOST_LAID_OUT = 1_000_000
"""Requests of all changes that are tried, some seconds in all: advice must not take longer than the plan."""
STEPS = 12
"""Sizes of one change that are tried, each larger than the one before."""
SIZED = ("explicit", "range", "csv")
"""Modes of lengths that are written for a number of requests."""


@dataclass(frozen=True)
class Change:
    """One field of a scenario, dotted, and the value to set it to."""

    field: str
    value: Any


def why_not_reached(scenario: Scenario, found: Layout) -> str:
    """What keeps the hit rate below the target."""
    block, own = scenario.tokenizer.block_size, scenario.minimum_non_shared_length
    longest = int(found.input_tokens.max())
    share = shareable(scenario, found)
    if share == 0:
        return (
            f"a request needs {own + block} tokens to share a block of {block} beside the {own} of its own, and the "
            f"longest has {longest}"
        )
    if share < scenario.prefix_cache.target_hit_rate or found.lane is None:
        return (
            f"{own} tokens of every request are its own and prefixes are whole blocks of {block}, so of inputs of "
            f"{found.input_tokens.mean():.0f} tokens on average at most {share:.2%} can be shared"
        )
    lanes = np.unique(found.lane).size
    return (
        f"each of {lanes} lanes ({len(found.names)} groups on {scenario.service.dp_size} ranks) computes its longest "
        f"prefix once, with {found.input_tokens.size} requests in all; without that it were {share:.2%}"
    )


def change_to_reach(scenario: Scenario, found: Layout) -> Change:
    """One change after which the target is in reach; where none was found, a target that is."""
    lengths = shareable(scenario, found) < scenario.prefix_cache.target_hit_rate
    if scenario.prefix_cache.target_hit_rate < 1:
        laid_out = 0
        for change in (_longer if lengths else _fewer_lanes)(scenario, found):
            changed = with_change(scenario, change)
            laid_out += changed.requests.count
            if laid_out > MOST_LAID_OUT:
                break
            if _reaches(changed):
                return change
    return Change("prefix_cache.target_hit_rate", math.floor(found.target.reachable_max * 1e4) / 1e4)


def _reaches(scenario: Scenario) -> bool:
    try:
        return layout(scenario).target.reachable
    except ScenarioError:  # lengths that cannot be drawn
        return False


def with_change(scenario: Scenario, change: Change) -> Scenario:
    document = scenario.model_dump()
    *sections, field = change.field.split(".")
    place = document
    for section in sections:
        place = place[section]
    place[field] = change.value
    return Scenario.model_validate(document)


def shareable(scenario: Scenario, found: Layout) -> float:
    """Share of all input tokens that hits if every prefix is cached: the bound that lengths and blocks set."""
    return int(found.capacities.sum()) * scenario.tokenizer.block_size / int(found.input_tokens.sum())


def _longer(scenario: Scenario, found: Layout) -> Iterator[Change]:
    """Less that is a request's own, longer inputs, smaller blocks."""
    cache, block = scenario.prefix_cache, scenario.tokenizer.block_size
    if cache.minimum_non_shared_length is not None:
        yield Change("prefix_cache.minimum_non_shared_length", scenario.seed_tokens)
    elif cache.seed_blocks > 1:
        yield Change("prefix_cache.seed_blocks", 1)
    longest = int(found.input_tokens.max())
    for factor in _factors(scenario, found):
        change = _scaled(scenario.requests.input_length, factor, block, scenario.minimum_non_shared_length)
        if change is None or longest * factor > max(LONGEST_INPUT, 4 * longest):
            break
        yield change
    for exponent in range((block - 1).bit_length() - 1, -1, -1):
        if 2**exponent >= min(block, SMALLEST_BLOCK):
            yield Change("tokenizer.block_size", 2**exponent)


def _factors(scenario: Scenario, found: Layout) -> Iterator[float]:
    """By how much inputs may have to grow: from what the shareable part needs at least."""
    own, rate = scenario.minimum_non_shared_length, scenario.prefix_cache.target_hit_rate
    factor = max(1.0, own / (1 - rate) / float(found.input_tokens.mean()))
    for step in range(STEPS):
        yield factor
        factor *= 1.1 if step < STEPS // 2 else 1.6


def _scaled(length: InputLength, factor: float, block: int, own: int) -> Change | None:
    """These lengths, about `factor` times as long; None where a file or a list holds them one by one.

    A fixed length is one that wastes nothing: whole blocks beside what is the request's own.
    """
    field = "requests.input_length"
    if length.mode == "fixed":
        return Change(f"{field}.value", own + math.ceil((length.value * factor - own) / block) * block)
    if length.mode == "range":
        parts = [
            {"min": math.ceil(part.min * factor), "max": math.ceil(part.max * factor), "count": part.count}
            for part in length.ranges or ()
        ]
        return Change(f"{field}.ranges", parts)
    if length.mode != "truncated_normal":
        return None
    value: dict[str, Any] = {"mode": length.mode}
    value |= {name: math.ceil(getattr(length, name) * factor) for name in ("min", "max")}
    value |= {
        name: math.ceil(known * factor)
        for name in ("mean", "std")
        if (known := getattr(length, name)) is not None
    }
    return Change(field, value)


def _fewer_lanes(scenario: Scenario, found: Layout) -> Iterator[Change]:
    """Fewer groups, more requests for each lane, no empty lanes at all."""
    groups, count = scenario.prefix_cache.groups, scenario.requests.count
    spare = 1 - scenario.prefix_cache.target_hit_rate / shareable(scenario, found)
    ranks = scenario.service.dp_size
    if groups.count > 1 and groups.assignment.mode != "weights" and not groups.overrides:
        fewer = min(groups.count - 1, max(1, int(count * spare / ranks)))
        for _ in range(STEPS):
            yield Change("prefix_cache.groups.count", fewer)
            if fewer == 1:
                break
            fewer = max(1, int(fewer * 0.8))
    if spare > 0 and not _sized(scenario):
        more = max(count + 1, math.ceil(groups.count * ranks / spare))
        for _ in range(STEPS):
            if more > max(MOST_REQUESTS, count):
                break
            yield Change("requests.count", more)
            more = math.ceil(more * 1.2)
    yield Change("prefix_cache.mode", "warmup")


def _sized(scenario: Scenario) -> bool:
    """Whether lengths are written for this number of requests."""
    requests = scenario.requests
    lengths: list[InputLength | OutputLength] = [requests.input_length, requests.output_length]
    for override in scenario.prefix_cache.groups.overrides.values():
        lengths += [length for length in (override.input_length, override.output_length) if length]
    return any(length.mode in SIZED for length in lengths)
