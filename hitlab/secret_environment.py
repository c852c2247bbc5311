"""Secrets of a container: variables from a mounted file, because Docker shows a container's environment to everybody."""

import os
import re
from collections.abc import MutableMapping
from pathlib import Path

from contract.errors import ScenarioError
from contract.files import read_text
from contract.redaction import SECRET_VARIABLES

FILE_VARIABLE = "HITLAB_SECRETS_FILE"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def load_secrets(environment: MutableMapping[str, str] = os.environ) -> None:
    """Add the `NAME=value` lines of the file that HITLAB_SECRETS_FILE names; nothing where it names none.

    White space around a value goes, also around a key that is in the environment already: files and shells add line
    ends, and no header can carry one. Empty lines are passed over.

    Raises ScenarioError when the file cannot be read or a line is none of these; the line itself is not shown.
    """
    name = environment.get(FILE_VARIABLE)
    if name:
        environment.update(_read(Path(name)))
    for variable in SECRET_VARIABLES:
        if variable in environment:
            environment[variable] = environment[variable].strip()


def _read(path: Path) -> dict[str, str]:
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ScenarioError(f"{FILE_VARIABLE}: {path} cannot be read ({error})") from error
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        variable, equals, value = line.partition("=")
        if not NAME.fullmatch(variable.strip()) or not equals or "\0" in value:
            raise ScenarioError(f"{FILE_VARIABLE}: {path}:{number} must be NAME=value")
        found[variable.strip()] = value.strip()
    return found
