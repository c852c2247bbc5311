"""Build the request data of a scenario; its hit rate is known from then on."""

from pathlib import Path
from typing import Annotated

import typer

from contract.errors import ScenarioError
from hitlab.arguments import ScenarioPath
from hitlab.terminal import Terminal, print_json


def command(
    context: typer.Context,
    scenario: ScenarioPath,
    mode: Annotated[
        str | None, typer.Option("--mode", metavar="text", help="Kind of data. Required.", show_default=False)
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Rebuild the newest prepared directory of this task.")
    ] = False,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", metavar="DIR", help="Instead of run.output_dir.", show_default=False),
    ] = None,
) -> None:
    if mode is None:
        raise ScenarioError("prepare needs to know the kind of data: add --mode text")
    if mode != "text":
        raise ScenarioError(f"--mode {mode}: this version prepares text only; use --mode text")
    from generator.prepare import prepare

    terminal: Terminal = context.obj
    with terminal.progress() as progress:
        paths = prepare(scenario, overwrite=overwrite, output_dir=output_dir, progress=progress)
    print_json(paths, one_line=True)
