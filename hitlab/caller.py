"""What a container takes over from whoever started it: Docker gives every process the same umask."""

import os
from collections.abc import Mapping

from contract.errors import ScenarioError

VARIABLE = "HITLAB_UMASK"


def take_umask(environment: Mapping[str, str] = os.environ) -> None:
    """Files get the modes that HITLAB_UMASK leaves (octal, as the shell shows it). Raises ScenarioError: it is none."""
    text = environment.get(VARIABLE)
    if not text:
        return
    try:
        mask = int(text, 8)
    except ValueError:
        mask = -1
    if not 0 <= mask <= 0o777:
        raise ScenarioError(f"{VARIABLE}={text!r}: must be an umask such as 077")
    os.umask(mask)
