"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ScenarioPath = Annotated[
    Path, typer.Option("--scenario", metavar="FILE", help="Scenario file, JSON or YAML.", show_default=False)
]
ManifestPath = Annotated[
    Path, typer.Option("--manifest", metavar="FILE", help="Manifest that prepare wrote.", show_default=False)
]
