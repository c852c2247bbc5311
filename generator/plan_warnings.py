"""What is known of a plan before any engine time is spent, and its owner should hear now."""

from contract.concurrency import too_few_lanes
from contract.scenario import Scenario
from generator.plan.plan import Plan


def plan_warnings(scenario: Scenario, plan: Plan) -> list[str]:
    """Each with its code, in one line."""
    found = []
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
