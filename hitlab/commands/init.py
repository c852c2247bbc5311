"""Create what a stack of containers needs once: the password of Grafana's administrator."""

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from contract.errors import ArtifactError

PASSWORD = "grafana-admin-password"  # noqa: S105 - a file's name
PASSWORD_BYTES = 24


def command(
    directory: Annotated[
        Path,
        typer.Option("--secrets", metavar="DIR", help="Folder that only the stack sees.", show_default=False),
    ],
) -> None:
    """What is there already stays: a second start of the stack finds the same password."""
    path = directory / PASSWORD
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o440)
    except FileExistsError:
        return
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written ({error.strerror})") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(PASSWORD_BYTES))
