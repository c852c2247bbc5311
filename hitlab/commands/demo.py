"""Measure prepared data again and again for some minutes, so that dashboards have something to show."""

import sys
import time
from typing import Annotated

import typer

from hitlab.arguments import ScenarioPath
from hitlab.commands import run


def command(
    context: typer.Context,
    scenario: ScenarioPath,
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="N", min=0, help="No run begins later than this.")
    ] = 5,
    done_message: Annotated[
        str,
        typer.Option("--done-message", metavar="TEXT", help="What to say at the end.", show_default=False),
    ] = "",
) -> int:
    """At least one run; ends with the first that fails. The analysis is left to `hitlab watch`."""
    end = time.monotonic() + 60 * minutes
    runs = 0
    while True:
        code = run.command(context, scenario, measure_only=True)
        runs += 1
        if code or time.monotonic() >= end:
            break
    print(f"{runs} runs done. {done_message}".strip(), file=sys.stderr)
    return code
