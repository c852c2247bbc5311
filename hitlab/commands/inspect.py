"""Show what hit rate a scenario can reach. Needs no tokenizer, no corpus and no engine."""

from pathlib import Path
from typing import Annotated

import typer

from contract.errors import ScenarioError
from hitlab.arguments import ScenarioPath
from hitlab.terminal import Terminal, print_json, print_warning


def command(
    context: typer.Context,
    scenario: ScenarioPath,
    mode: Annotated[
        str, typer.Option("--mode", metavar="text|mm", help="Kind of data: mm shows which image is chosen.")
    ] = "text",
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", metavar="DIR", help="Instead of run.output_dir.", show_default=False),
    ] = None,
) -> None:
    if mode not in ("text", "mm"):
        raise ScenarioError(f"--mode {mode}: must be text or mm")
    from generator.inspect import inspect
    from generator.multimodal.prepare import inspect_images

    if mode == "text":
        terminal: Terminal = context.obj
        with terminal.progress() as progress:
            summary = inspect(scenario, output_dir, warn=print_warning, progress=progress)
        print_json(summary)
    else:
        print_json(inspect_images(scenario, output_dir))
