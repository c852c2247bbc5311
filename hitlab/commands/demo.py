"""Measure prepared data again and again for some minutes, so that dashboards have something to show."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from contract.errors import ExitCode, HitLabError, ServiceError
from hitlab.arguments import ScenarioPath
from hitlab.commands import run
from hitlab.terminal import print_error

if TYPE_CHECKING:
    from contract.scenario import Scenario

PASSING = (ExitCode.REQUESTS_FAILED, ExitCode.SERVICE, ExitCode.DRIVER, ExitCode.INCONCLUSIVE)
"""What may be over at the next run; anything else would be the same again."""
PAUSE_SECONDS = 1.0


def command(
    context: typer.Context,
    scenario: ScenarioPath,
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="N", min=0, help="No run begins later than this.")
    ] = 5,
    done_message: Annotated[
        str,
        typer.Option("--done-message", metavar="TEXT", help="Message at the end.", show_default=False),
    ] = "",
) -> int:
    """At least one run. The engine is waited for; after a run that fails the next one begins.

    Ends with 0 when any run got through, else with the code of the last. The analysis is left to `hitlab watch`.
    """
    from contract.scenario import load_scenario

    end = time.monotonic() + 60 * minutes
    loaded = load_scenario(scenario)
    done = failed = 0
    while True:
        try:
            _wait_for_engine(loaded, end)
            code = run.command(context, scenario, measure_only=True)
        except HitLabError as error:
            if error.exit_code not in PASSING:
                raise
            print_error(str(error))
            code = int(error.exit_code)
        done, failed = done + (code == 0), failed + (code != 0)
        print(
            f"Run {done + failed} {'done' if code == 0 else f'failed (exit code {code})'}.", file=sys.stderr
        )
        if time.monotonic() >= end or code not in (0, *PASSING):
            break
    print(
        f"{done} runs done{f', {failed} failed' if failed else ''}. {done_message}".strip(), file=sys.stderr
    )
    return 0 if done else code


def _wait_for_engine(scenario: "Scenario", end: float) -> None:
    """Return once the metrics page is there. Raises ServiceError: it was not before `end` (monotonic seconds)."""
    if scenario.engine.kind != "external":
        return
    from enginemetrics.scrape import fetch

    service = scenario.service
    told = False
    while True:
        try:
            fetch(service.metrics_urls or service.metrics_url, timeout_seconds=service.timeout_seconds)
        except ServiceError as error:
            if time.monotonic() >= end:
                raise
            if not told:
                print(f"waiting for the engine: {error}", file=sys.stderr, flush=True)
            told = True
            time.sleep(PAUSE_SECONDS)
            continue
        if told:
            print("the engine is there", file=sys.stderr, flush=True)
        return
