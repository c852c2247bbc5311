"""Emptying the prefix cache before a run, and proving that it is empty: a text that was in it must miss."""

import threading
from collections.abc import Sequence

from contract.errors import ServiceError
from contract.measurement import Finding
from runner.control import ControlClient, Scrape, refusal
from runner.probe import Probe, send_probe

ATTEMPTS = 10
PAUSE_SECONDS = 0.5


def reset_cache(
    client: ControlClient,
    probes: Sequence[Probe],
    leftover_tokens: int,
    before: Scrape,
    *,
    assume_empty_cache: bool,
    stop: threading.Event,
) -> list[Finding]:
    """Reset the cache and send the probes, which are in it, once more: they must miss on every rank.

    Without a reset `assume_empty_cache` goes on, with the findings to report: ASSUME_EMPTY_CACHE, and CONTAMINATED when
    the probes found something at their first sending. Otherwise ServiceError.
    """
    problem = reset_problem(client, stop)
    if problem is None:
        found = _probe_hits(client, probes, before, stop)
        if not found:
            return []
        problem = (
            f"{client.engine.reset_url}: the reset reported success, but {found} tokens of the probes are still found; "
            "an external tier (LMCache, KV offload) keeps them, so reset that too"
        )
        leftover_tokens = found
    if not assume_empty_cache:
        raise ServiceError(
            f"{problem}; or set service.assume_empty_cache: true if the cache is known to be empty"
        )
    findings = [
        Finding(
            code="ASSUME_EMPTY_CACHE",
            message=f"{problem}; going on because service.assume_empty_cache is true",
        )
    ]
    if leftover_tokens:
        findings.append(
            Finding(
                code="CONTAMINATED",
                message=f"the cache is not empty: {leftover_tokens} tokens of the probes were found in it",
                tokens=leftover_tokens,
            )
        )
    return findings


def reset_problem(client: ControlClient, stop: threading.Event) -> str | None:
    """Why the cache could not be reset; None when the engine says that it was.

    vLLM >= 0.26 answers {"success": false} while blocks are still held, so that is tried again. Older versions answer 200
    with an empty body whatever happened. `reset_external` clears a KV connector's tier as well; versions that do not
    know it, or have no connector, take no notice.
    """
    url = client.engine.reset_url
    if url is None:
        return "service.reset_url is not configured; set it to the engine's /reset_prefix_cache"
    for attempt in range(ATTEMPTS):
        # Some versions count a missing connector as a failed reset of it: every other attempt leaves it out.
        options = {"params": {"reset_external": "true"}} if attempt % 2 == 0 else {}
        try:
            answer = client.call("POST", url, **options)
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


def _probe_hits(client: ControlClient, probes: Sequence[Probe], before: Scrape, stop: threading.Event) -> int:
    """Tokens that the probes find now. Engines that do not tell hits in tokens cannot be asked; that counts as none."""
    found, scrape = 0, before
    for probe in probes:
        result = send_probe(client, probe, scrape, stop)
        scrape = result.scrape
        found += result.hits or 0
    return found
