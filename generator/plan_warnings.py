"""What is known of a plan before any engine time is spent, and its owner should hear now."""

import json

from contract.concurrency import too_few_lanes
from contract.scenario import Scenario
from generator.plan.plan import Plan, layout
from generator.plan.reach import Change, change_to_reach, why_not_reached


def plan_warnings(scenario: Scenario, plan: Plan) -> list[str]:
    """Each with its code, in one line."""
    found = []
    target = target_warning(scenario, plan)
    if target is not None:
        found.append(target)
    if plan.lane is not None and plan.rank is not None:
        short = too_few_lanes(
            scenario.concurrency,
            lanes=len(set(plan.lane.tolist())),
            groups=len(plan.groups),
            ranks=plan.dp_size,
        )
        if short is not None:
            found.append(f"CONCURRENCY_NOT_REACHED: {short}")
    return found


def target_warning(scenario: Scenario, plan: Plan) -> str | None:
    """That another rate is built than was asked for: out of reach, with the change that reaches it, or off the grid."""
    asked, built = plan.target.requested_rate, plan.target.effective_rate
    if not plan.target.reachable:
        requests = layout(scenario)
        change = change_to_reach(scenario, requests)
        return (
            f"TARGET_UNREACHABLE: {asked:.2%} requested, at most {plan.target.reachable_max:.2%} can be reached: "
            f"{why_not_reached(scenario, requests)}; {_advice(change, asked)}"
        )
    if abs(built - asked) * 100 > scenario.validation.target_warning_pp:
        return (
            f"TARGET_DEVIATION: {asked:.2%} requested, {built:.2%} is the nearest that {plan.total_input_tokens} input "
            f"tokens in blocks of {plan.block_size} give; more requests or longer inputs come nearer"
        )
    return None


def _advice(change: Change, asked: float) -> str:
    if change.field == "prefix_cache.target_hit_rate":
        most = f"{change.value:g} or less" if change.value else "0"
        return f"no other change was found that reaches {asked:.2%}, so set {change.field} to {most}"
    engine = ", and start the engine with such blocks" if change.field == "tokenizer.block_size" else ""
    return f"to reach it set {change.field} to {json.dumps(change.value)}{engine}"
