"""Command line options of the simulator, made from the fields of its configuration."""

import argparse
import os
from collections.abc import Sequence
from typing import Any

from pydantic import SecretStr, ValidationError

from contract.errors import ScenarioError
from simulator.config import SimulatorConfig

_DESCRIPTION = (
    "A small OpenAI-compatible server that behaves like vLLM's prefix cache. Prints its URL when ready."
)
_SECRET = "api_key"  # noqa: S105 - the field's name


def parse_options(arguments: Sequence[str], program: str = "simulator") -> SimulatorConfig:
    """The configuration that command line arguments describe.

    Raises:
        ScenarioError: a value, or the combination of values, is not usable.
        SystemExit: `--help`, or an unknown option (argparse's own).
    """
    parser = argparse.ArgumentParser(
        program, description=_DESCRIPTION, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, field in SimulatorConfig.model_fields.items():
        if name == _SECRET:
            continue
        more: dict[str, Any] = {"action": argparse.BooleanOptionalAction} if field.annotation is bool else {}
        if not more:
            more["metavar"] = name.rpartition("_")[2].upper()
        parser.add_argument(_flag(name), default=field.default, help=field.description, **more)
    parser.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable that holds the bearer token of /v1 routes"
    )
    values = vars(parser.parse_args(arguments))
    variable = values.pop("api_key_env")
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
            found.append(f"{_flag(where)}: {message}, found {entry['input']!r}" if where else message)
        raise ScenarioError("simulator: " + "; ".join(found)) from error


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
