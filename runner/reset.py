"""Emptying the prefix cache before a run, and reading whether the engine really did."""

import threading

from contract.errors import ServiceError
from contract.measurement import Finding
from runner.control import ControlClient, refusal

ATTEMPTS = 10
PAUSE_SECONDS = 0.5


def reset_cache(client: ControlClient, *, assume_empty_cache: bool, stop: threading.Event) -> Finding | None:
    """Reset the cache. Without one, `assume_empty_cache` goes on with the finding to report; else ServiceError.

    vLLM >= 0.26 answers {"success": false} while blocks are still held, so that is tried again. Older versions answer
    200 with an empty body whatever happened.
    """
    problem = _reset_problem(client, stop)
    if problem is None:
        return None
    if assume_empty_cache:
        message = f"{problem}; going on because service.assume_empty_cache is true"
        return Finding(code="ASSUME_EMPTY_CACHE", message=message)
    raise ServiceError(
        f"{problem}; or set service.assume_empty_cache: true if the cache is known to be empty"
    )


def _reset_problem(client: ControlClient, stop: threading.Event) -> str | None:
    url = client.engine.reset_url
    if url is None:
        return "service.reset_url is not configured; set it to the engine's /reset_prefix_cache"
    for attempt in range(ATTEMPTS):
        try:
            answer = client.call("POST", url)
        except ServiceError as error:
            return str(error)
        if answer.status == 404:
            return f"{url}: HTTP 404; start vLLM with VLLM_SERVER_DEV_MODE=1, which mounts the route"
        if answer.status != 200:
            return f"{url}: {refusal(answer)}"
        success = answer.body.get("success") if isinstance(answer.body, dict) else None
        if success is not False:
            return None
        if attempt < ATTEMPTS - 1 and stop.wait(PAUSE_SECONDS):
            break
    return (
        f'{url}: answered "success": false {ATTEMPTS} times; blocks are still in use, so stop other traffic'
    )
