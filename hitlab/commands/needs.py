"""Show what a scenario needs of a container: its engine, and files that have to be mounted."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from contract.kinds import Mode
from hitlab.arguments import ScenarioPath


def command(
    scenario: ScenarioPath,
    mounted: Annotated[
        list[Path] | None,
        typer.Option(
            "--mounted", metavar="DIR", help="A folder that is mounted; may be repeated.", show_default=False
        ),
    ] = None,
    mode: Annotated[
        Mode, typer.Option("--mode", metavar="text|mm", help="Kind of data that is to be prepared.")
    ] = "text",
) -> None:
    """`engine KIND`, `driver KIND`, `path FILE`, `variable NAME` (of engine.env_from), each ended by a NUL byte.

    The whole scenario is checked first, its text alone: the files that it names need not be there. With `--mounted`, a
    file outside all of these folders is an error that names the setting of `make bench`.
    """
    from contract.scenario.load import parse_scenario, read_document
    from contract.scenario.paths import check_mounted, needed_paths

    document, folder = read_document(scenario), scenario.resolve().parent
    checked = parse_scenario(document, source=str(scenario), folder=folder, mode=mode, files=False)
    paths = list(needed_paths(document, folder, mode))
    if mounted is not None:
        check_mounted(paths, mounted)
    needs = [
        f"engine {checked.engine.kind}",
        f"driver {checked.driver_kind}",
        *(f"path {needed.path}" for needed in paths),
        *(f"variable {name}" for name in checked.engine.env_from),
    ]
    # Shell scripts read this. A path may hold anything but a NUL, so nothing else can end an entry.
    sys.stdout.buffer.write(b"".join(os.fsencode(need) + b"\0" for need in needs))
