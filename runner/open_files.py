"""How many files and connections this process may have open: the event loop ends the process where it gets none."""

import resource

from contract.errors import ScenarioError

OWN_FILES = 32
"""What a run has open beside its connections: scrapes, records, logs, pipes, the event loop's own."""


def require_open_files(connections: int, field: str) -> None:
    """Raise the limit as far as it may be raised, and see that it is enough for a load with `connections`.

    Raises ScenarioError that names `field`, which asks for them.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    needed = connections + OWN_FILES
    if soft < needed and hard != soft:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < needed:
        raise ScenarioError(
            f"{field}: {connections} requests at a time need {needed} open files, and {soft} are allowed here; raise "
            f"that (ulimit -n {needed})"
        )
