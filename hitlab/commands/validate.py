"""Check that prepared data is still exactly what prepare wrote."""

import typer

from hitlab.arguments import ManifestPath
from hitlab.terminal import Terminal, print_json


def command(context: typer.Context, manifest: ManifestPath) -> None:
    from generator.validate import validate

    terminal: Terminal = context.obj
    with terminal.progress() as progress:
        result = validate(manifest, progress)
    print_json(result)
