"""Build the request data of a scenario; its hit rate is known from then on."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from contract.errors import ScenarioError
from hitlab.arguments import ScenarioPath
from hitlab.terminal import Terminal, print_json, print_note, print_warning


def command(
    context: typer.Context,
    scenario: ScenarioPath,
    mode: Annotated[
        str | None,
        typer.Option("--mode", metavar="text|mm", help="Kind of data. Required.", show_default=False),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Rebuild the newest directory with this very data, unless it holds measurements.",
        ),
    ] = False,
    discard_measurements: Annotated[
        bool,
        typer.Option("--discard-measurements", help="With --overwrite: rebuild it anyway, and delete them."),
    ] = False,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", metavar="DIR", help="Instead of run.output_dir.", show_default=False),
    ] = None,
    manifest_only: Annotated[
        bool, typer.Option("--manifest-only", help="Print the manifest's path alone, for scripts.")
    ] = False,
) -> None:
    if mode is None:
        raise ScenarioError(
            "prepare needs to know the kind of data: add --mode text (or --mode mm for images)"
        )
    if mode not in ("text", "mm"):
        raise ScenarioError(f"--mode {mode}: must be text or mm")
    if discard_measurements and not overwrite:
        raise ScenarioError("--discard-measurements: goes with --overwrite alone; add it")
    from generator.multimodal.prepare import prepare_images
    from generator.prepare import prepare

    terminal: Terminal = context.obj
    with terminal.progress() as progress:
        build = partial(prepare, warn=print_warning) if mode == "text" else prepare_images
        shown = build(
            scenario,
            overwrite=overwrite,
            discard_measurements=discard_measurements,
            output_dir=output_dir,
            progress=progress,
            note=print_note,
        )
    if manifest_only:
        print(shown["manifest"])
        return
    print_json(shown, one_line=True)
