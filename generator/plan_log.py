"""What a plan is, in the lines of a log: settings, lengths, groups, target, trajectory, warmup."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from contract.command_log import bounded
from contract.effective_config import effective_config
from contract.scenario import Scenario
from generator.plan.plan import Plan
from generator.summary import length_summary, route_counts

IN_THE_MANIFEST = "the manifest has them all"


def settings_lines(scenario: Scenario, path: Path, sha256: str) -> Iterator[str]:
    """Where the scenario is, and every section of it as it took effect, without secrets."""
    yield f"scenario {path.resolve()} (SHA-256 {sha256})"
    for section, content in effective_config(scenario).items():
        yield f"setting {section}: {orjson.dumps(content).decode()}"


def plan_lines(scenario: Scenario, plan: Plan) -> Iterator[str]:
    """What is asked for, what can be reached, and how the requests are made up. Tokens unless it says otherwise."""
    target = plan.target
    yield (
        f"plan: {plan.count} requests, {plan.mode}, {len(plan.groups)} groups, {plan.dp_size} ranks, blocks of "
        f"{plan.block_size}, order {scenario.prefix_cache.order.strategy}"
    )
    for name, lengths in (("input", plan.input_tokens), ("output", plan.output_tokens)):
        yield f"{name} lengths: {_lengths(int(lengths.sum()), length_summary(lengths))}"
    yield (
        f"target: {target.requested_rate:.4%} requested, {target.reachable_min:.4%} to {target.reachable_max:.4%} can be "
        f"reached, {target.effective_rate:.4%} is built for{f' ({target.reason})' if target.reason else ''}"
    )
    yield (
        f"theory: {plan.total_hit_tokens} of {plan.total_input_tokens} tokens hit ({plan.theoretical_hit_rate:.4%}); "
        f"at least {scenario.minimum_non_shared_length} tokens of each request are not shared, seed "
        f"{scenario.seed_tokens}"
    )
    yield f"trajectory: {plan.trajectory.strategy}, {plan.trajectory.status}"
    for issue in plan.trajectory.issues:
        yield f"trajectory: {issue.code}: {issue.message}"
    for rank, count in route_counts(plan).items():
        yield f"rank {rank}: {count} requests"
    yield from bounded(
        (
            f"{group.name}: {group.size} requests, {group.input_tokens} tokens, shared prefix up to "
            f"{group.max_prefix_blocks * plan.block_size}, {group.hit_tokens} hit ({group.theoretical_hit_rate:.4%}; "
            f"reachable {group.reachable_max:.4%})"
            for group in plan.groups
        ),
        IN_THE_MANIFEST,
    )


def _lengths(total: int, summary: Mapping[str, Any]) -> str:
    shown = ", ".join(
        f"{name} {summary[name]:g}" for name in ("min", "max", "mean", "p50", "p90", "p95", "p99")
    )
    bins = "; ".join(f"{part['min']}..{part['max']}: {part['count']}" for part in summary["bins"])
    return f"total {total}, {shown}; {bins}"


def warmup_lines(plan: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Items of the manifest's warmup plan, without their prompts."""
    yield from bounded(
        (
            f"warmup {item['group_id']} on rank {item['dp_rank']}: {item['input_tokens']} tokens, "
            f"{item['shared_prefix_tokens']} of them shared"
            for item in plan
        ),
        IN_THE_MANIFEST,
    )


def artifact_lines(artifacts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Each file with rows, bytes and hash, as the manifest has them."""
    for name, artifact in artifacts.items():
        rows = f"{artifact['rows']} rows, " if "rows" in artifact else ""
        sha256 = artifact.get("sha256", artifact.get("sha256_at_prepare"))
        yield f"{name}: {artifact['name']}, {rows}{artifact['bytes']} bytes, SHA-256 {sha256}"
