"""Show what hit rate a scenario can reach. Needs no tokenizer, no corpus and no engine."""

from pathlib import Path
from typing import Annotated

import typer

from hitlab.arguments import ScenarioPath
from hitlab.terminal import print_json


def command(
    scenario: ScenarioPath,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", metavar="DIR", help="Instead of run.output_dir.", show_default=False),
    ] = None,
) -> None:
    from generator.inspect import inspect

    print_json(inspect(scenario, output_dir))
