"""Secrets of a container: variables from a mounted file, because Docker shows a container's environment to everybody."""

import os
from collections.abc import MutableMapping
from pathlib import Path

from contract.errors import ScenarioError
from contract.files import read_text

FILE_VARIABLE = "HITLAB_SECRETS_FILE"


def load_secrets(environment: MutableMapping[str, str] = os.environ) -> None:
    """Add the `NAME=value` lines of the file that HITLAB_SECRETS_FILE names; nothing where it names none.

    Raises ScenarioError when the file cannot be read or a line has no name; the line itself is not shown.
    """
    name = environment.get(FILE_VARIABLE)
    if not name:
        return
    try:
        lines = read_text(Path(name)).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{FILE_VARIABLE}: {name} cannot be read ({error})") from error
    for number, line in enumerate(lines, 1):
        variable, found, value = line.partition("=")
        if not variable.strip() or not found:
            raise ScenarioError(f"{FILE_VARIABLE}: {name}:{number} must be NAME=value")
        environment[variable] = value
