"""Command line options of the simulator, made from the fields of its configuration."""

import os
from collections.abc import Sequence
from typing import Any

import click
from pydantic import SecretStr, ValidationError

from contract.errors import ScenarioError
from contract.options import Options, field_option, flag, given
from simulator.config import SimulatorConfig

_DESCRIPTION = (
    "A small OpenAI-compatible server that behaves like vLLM's prefix cache. Prints its URL when ready."
)
_SECRET = "api_key"  # noqa: S105 - the field's name


def parse_options(arguments: Sequence[str], program: str = "simulator") -> SimulatorConfig:
    """The configuration that command line arguments describe.

    Raises:
        ScenarioError: an unknown option; a value, or the combination of values, that is not usable.
        SystemExit: `--help`.
    """
    options = [
        field_option(name, field) for name, field in SimulatorConfig.model_fields.items() if name != _SECRET
    ]
    key_from = click.Option(
        ["--api-key-env"],
        metavar="NAME",
        help="Environment variable that holds the bearer token of /v1 routes.",
    )
    values = given(program, _DESCRIPTION, [Options("Options", [*options, key_from])], arguments)
    variable = values.pop("api_key_env", None)
    if variable is not None:
        key = os.environ.get(variable)
        if not key:
            raise ScenarioError(f"--api-key-env: {variable} is not set; export it or drop the option")
        values[_SECRET] = SecretStr(key)
    return checked_config(values)


def checked_config(values: dict[str, Any]) -> SimulatorConfig:
    """A configuration from plain values; all that is wrong with them in one line.

    Raises:
        ScenarioError: names each field, the value found and what would be right.
    """
    try:
        return SimulatorConfig.model_validate(values)
    except ValidationError as error:
        found = []
        for entry in error.errors(include_url=False):
            message = entry["msg"].removeprefix("Value error, ")
            where = ".".join(str(part) for part in entry["loc"])
            found.append(f"{flag(where)}: {message}, found {entry['input']!r}" if where else message)
        raise ScenarioError("simulator: " + "; ".join(found)) from error
