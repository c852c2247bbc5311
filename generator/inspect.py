"""`inspect`: what a scenario can reach, without tokenizer, corpus or engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from contract.command_log import PhaseTimes, command_log, log_lines
from contract.documents import file_sha256, write_document
from contract.effective_config import effective_config
from contract.kinds import Mode
from contract.manifest import seal
from contract.progress import Progress, silent
from contract.redaction import Redactor
from contract.run_directory import RunDirectory, create_run_directory
from contract.scenario import Scenario, load_scenario
from generator.plan.plan import Plan, build_plan
from generator.plan_log import plan_lines, settings_lines
from generator.plan_warnings import plan_warnings
from generator.room import LONG_PLAN, check_memory
from generator.summary import length_summary, route_counts, trajectory_summary
from generator.version import plugin_version


def inspect(
    scenario_path: Path,
    output_dir: Path | None = None,
    warn: Callable[[str], None] = lambda _text: None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Plan the scenario, leave an `inspected` manifest, and return the summary to show.

    `output_dir` is used instead of the scenario's; `warn` gets what `plan_warnings` finds.
    """
    scenario = load_scenario(scenario_path)
    if output_dir is not None:
        run = scenario.run.model_copy(update={"output_dir": str(output_dir.resolve())})
        scenario = scenario.model_copy(update={"run": run})
    check_memory(scenario)
    phase = PhaseTimes()
    if scenario.requests.count >= LONG_PLAN:
        progress("Plan requests", 0, scenario.requests.count)
    with phase("plan"):
        plan = build_plan(scenario)
    directory = create_run_directory(Path(scenario.run.output_dir), scenario.run.run_id)
    with command_log(directory.log("inspect"), Redactor(scenario.service.api_key)) as log:
        log_lines(log, settings_lines(scenario, scenario_path, file_sha256(scenario_path)))
        phase.tell(log)
        log_lines(log, plan_lines(scenario, plan))
        summary = inspect_summary(scenario, plan)
        summary |= {"log": str(directory.log("inspect")), "manifest": str(directory.manifest)}
        write_inspected_manifest(directory, scenario, scenario_path, "text", summary)
        log.info("inspected: %s", directory.manifest)
        for warning in plan_warnings(scenario, plan):
            log.warning(warning)
            warn(warning)
    return summary


def write_inspected_manifest(
    directory: RunDirectory,
    scenario: Scenario,
    scenario_path: Path,
    mode: Mode,
    summary: dict[str, Any],
    **extra: Any,
) -> None:
    """What `prepare` goes on from. `extra`: keys of this mode alone."""
    document = {
        "schema_version": "1.0",
        **extra,
        "plugin_version": plugin_version(),
        "benchmark_mode": mode,
        "status": "inspected",
        "run_id": directory.run_id,
        "scenario_path": str(scenario_path.resolve()),
        "scenario_sha256": file_sha256(scenario_path),
        "effective_config": effective_config(scenario),
        "inspect": {
            "timestamp": directory.root.name.removeprefix(f"{Path(scenario.run.output_dir).name}_"),
            "base_run_id": scenario.run.run_id,
            "base_output_dir": scenario.run.output_dir,
            "sends_requests": False,
            "summary": summary,
        },
    }
    write_document(directory.manifest, seal(document))


def inspect_summary(scenario: Scenario, plan: Plan) -> dict[str, Any]:
    """The fields of the newest guide's table, in its order."""
    return {
        "run_id": scenario.run.run_id,
        "mode": plan.mode,
        "requested_target_hit_rate": plan.target.requested_rate,
        "effective_target_hit_rate": plan.target.effective_rate,
        "theoretical_hit_rate": plan.theoretical_hit_rate,
        "reachable_min": plan.target.reachable_min,
        "reachable_max": plan.target.reachable_max,
        "target_reachable": plan.target.reachable,
        "trajectory": trajectory_summary(plan),
        "group_reachability": {
            group.name: {"reachable_min": 0.0, "reachable_max": group.reachable_max} for group in plan.groups
        },
        "groups": {group.name: group.size for group in plan.groups},
        "input_tokens": {"total": plan.total_input_tokens, **length_summary(plan.input_tokens)},
        "output_tokens": {"total": int(plan.output_tokens.sum()), **length_summary(plan.output_tokens)},
        "dp_route_counts": route_counts(plan),
        "sends_requests": False,
        "planning_only": True,
        "content_validation_deferred_to_prepare": True,
    }
