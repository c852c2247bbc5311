"""Tell what a scenario needs of a container: its engine, and files that have to be mounted."""

from pathlib import Path
from typing import Annotated, Any

import typer

from contract.scenario.rules import Mode
from hitlab.arguments import ScenarioPath

DEFAULT_ENGINE = "external"


def command(
    scenario: ScenarioPath,
    mounted: Annotated[
        list[Path] | None,
        typer.Option(
            "--mounted", metavar="DIR", help="A folder that is there; any number.", show_default=False
        ),
    ] = None,
    mode: Annotated[
        Mode, typer.Option("--mode", metavar="text|mm", help="Kind of data that is to be prepared.")
    ] = "text",
) -> None:
    """One need a line: `engine KIND`, `driver KIND`, `path FILE`, `variable NAME` (of engine.env_from).

    With `--mounted`, a file outside all of these folders is an error that names the setting of `make bench`.
    """
    from contract.scenario.load import read_document
    from contract.scenario.paths import check_mounted, needed_paths

    document = read_document(scenario)
    paths = list(needed_paths(document, scenario.resolve().parent, mode))
    if mounted is not None:
        check_mounted(paths, mounted)
    engine = _engine(document)
    print(f"engine {engine.get('kind') or DEFAULT_ENGINE}")
    print(f"driver {_driver(document)}")
    for needed in paths:
        print(f"path {needed.path}")
    variables = engine.get("env_from")
    for name in variables if isinstance(variables, list) else ():
        print(f"variable {name}")


def _driver(document: Any) -> str:
    """As `Scenario.driver_kind`, of a document that may not be right."""
    if not isinstance(document, dict):
        return "native"
    section = document.get("driver")
    kind = section.get("kind") if isinstance(section, dict) else None
    return str(kind or ("aisbench" if "aisbench" in document else "native"))


def _engine(document: Any) -> dict[str, Any]:
    """The section as the file has it; whether it is right is for the commands that read the whole of it."""
    engine = document.get("engine") if isinstance(document, dict) else None
    return engine if isinstance(engine, dict) else {}
