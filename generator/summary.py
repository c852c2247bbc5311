"""Summaries of token lengths and plans, as manifest and inspect show them (reference 4.4, 4.6)."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from cachemodel.watermark import Integers
from contract.documents import file_sha256
from contract.scenario import Validation
from generator.plan.plan import Plan


def length_summary(lengths: Integers) -> dict[str, Any]:
    """min, max, mean, percentiles (linear interpolation at (n-1)*p) and up to ten bins, empty ones left out."""
    low, high = int(lengths.min()), int(lengths.max())
    width = max(1, math.ceil((high - low + 1) / 10))
    bins = []
    numbers = (lengths - low) // width
    for number in np.unique(numbers):
        members = lengths[numbers == number]
        bins.append({"min": int(members.min()), "max": int(members.max()), "count": int(members.size)})
    return {
        "min": low,
        "max": high,
        "mean": float(lengths.mean()),
        **{f"p{p}": float(np.percentile(lengths, p, method="linear")) for p in (50, 90, 95, 99)},
        "bins": bins,
    }


def theory(plan: Plan) -> dict[str, Any]:
    """Theoretical hits in total, per group and, where the plan routes, per rank."""
    by_rank = {}
    if plan.rank is not None:
        for rank in np.unique(plan.rank):
            members = plan.rank == rank
            by_rank[str(rank)] = _hits(
                int(plan.input_tokens[members].sum()), int(plan.hit_tokens[members].sum())
            )
    return {
        "input_tokens": plan.total_input_tokens,
        "hit_tokens": plan.total_hit_tokens,
        "hit_requests": int((plan.hit_tokens > 0).sum()),
        "groups": {group.name: _hits(group.input_tokens, group.hit_tokens) for group in plan.groups},
        "dp": by_rank,
    }


def _hits(input_tokens: int, hit_tokens: int) -> dict[str, Any]:
    return {"input_tokens": input_tokens, "hit_tokens": hit_tokens, "hit_rate": hit_tokens / input_tokens}


def prefix_cache_summary(
    plan: Plan, minimum_non_shared_length: int, validation: Validation
) -> dict[str, Any]:
    """The manifest's `prefix_cache`."""
    target = plan.target
    difference_pp = (plan.theoretical_hit_rate - target.requested_rate) * 100
    warn = not target.reachable or abs(difference_pp) > validation.target_warning_pp
    return {
        "mode": plan.mode,
        "requested_target_hit_rate": target.requested_rate,
        "effective_target_hit_rate": target.effective_rate,
        "theoretical_hit_rate": plan.theoretical_hit_rate,
        "reachable_min": target.reachable_min,
        "reachable_max": target.reachable_max,
        "target_reachable": target.reachable,
        "minimum_non_shared_length": minimum_non_shared_length,
        "adjusted": target.adjusted,
        "reason": target.reason,
        "validation_status": "PASS_WITH_WARNING" if warn else "PASS",
        "target_signed_difference_pp": difference_pp,
        "target_absolute_difference_pp": abs(difference_pp),
    }


def trajectory_summary(plan: Plan) -> dict[str, Any]:
    """Strategy, status and issues of the trajectory. Rates are shares, `_pp` are percentage points."""
    trajectory = plan.trajectory
    return {
        "strategy": trajectory.strategy,
        "status": trajectory.status,
        "issues": [{"code": issue.code, "message": issue.message} for issue in trajectory.issues],
        "largest_overshoot_pp": trajectory.largest_overshoot * 100,
        "smallest_overshoot_proven": trajectory.smallest_overshoot_proven,
        "largest_fall_pp": trajectory.largest_fall * 100,
        "falls": trajectory.falls,
    }


def route_counts(plan: Plan) -> dict[str, int]:
    """Formal requests per rank; empty in warmup mode, where the server balances."""
    if plan.rank is None:
        return {}
    counts = np.bincount(plan.rank, minlength=plan.dp_size)
    return {str(rank): int(count) for rank, count in enumerate(counts)}


def analysis_artifact(path: Path) -> dict[str, Any]:
    """The manifest's entry of the first analysis. Every run replaces that file, so its hash is that of now."""
    return {
        "name": path.name,
        "path": str(path),
        "bytes": path.stat().st_size,
        "sha256_at_prepare": file_sha256(path),
    }
