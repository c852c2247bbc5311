"""Emptying the prefix cache before a run, and proving that it is empty: a text that was in it must miss."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contract.errors import ServiceError
from contract.measurement import Check, Finding
from runner.control import ControlClient, refusal
from runner.probe import ProbeResult, send_probe

if TYPE_CHECKING:
    from runner.preflight import Preflight, RankChecks

ATTEMPTS = 10
PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class Reset:
    """`check`: whether the emptied cache was proved empty. `findings`: the run goes on with a cache that may not be."""

    check: Check
    findings: tuple[Finding, ...] = ()


def reset_cache(
    client: ControlClient, checked: "Preflight", *, assume_empty_cache: bool, stop: threading.Event
) -> Reset:
    """Reset the cache and send the probes, which are in it, once more: they must miss on every rank.

    Without a reset `assume_empty_cache` goes on, with the findings to report: ASSUME_EMPTY_CACHE, and CONTAMINATED when
    the probes found something at their first sending. Otherwise ServiceError.
    """
    problem, leftover = reset_problem(client, stop), checked.ranks.leftover_tokens
    if problem is None:
        results = _send_again(client, checked, stop)
        leftover = sum(result.hits or 0 for result in results)
        if not leftover:
            return Reset(_proof(client, checked, results))
        problem = (
            f"{client.engine.reset_url}: the reset reported success, but {leftover} tokens of the probes are still "
            f"found: {_keeper(results, checked.ranks)}"
        )
    if not assume_empty_cache:
        raise ServiceError(
            f"{problem}; or set service.assume_empty_cache: true if the cache is known to be empty"
        )
    message = f"{problem}; going on because service.assume_empty_cache is true"
    findings = [Finding(code="ASSUME_EMPTY_CACHE", message=message)]
    if leftover:
        message = f"the cache is not empty: {leftover} tokens of the probes were found in it"
        findings.append(Finding(code="CONTAMINATED", message=message, tokens=leftover))
    return Reset(Check(name="reset", status="warning", detail=message), tuple(findings))


def _proof(client: ControlClient, checked: "Preflight", results: Sequence[ProbeResult]) -> Check:
    """A probe that misses proves a reset only where it hit before."""
    if any(result.hits is None for result in results):
        reason = "hits are told in tokens neither by counters nor by answers"
    elif unfound := sorted({probe.rank for probe in checked.probes} - checked.ranks.found_again):
        reason = f"the probe of rank {', '.join(map(str, unfound))} was not found before it either"
    else:
        return Check(name="reset", status="ok", detail="the probes, found before it, miss on every rank")
    return Check(
        name="reset", status="not_checked", detail=f"{client.engine.reset_url} reports success; {reason}"
    )


def _keeper(results: Sequence[ProbeResult], ranks: "RankChecks") -> str:
    """Who still has the tokens, by what counters (the engine's own cache) and answers (external tiers too) say."""
    own = [None if ranks.ledgers_differ else result.counted_hits for result in results]
    if any(own):
        return "the engine's own cache was not emptied"
    if None in own:
        return "the engine's own cache was not emptied, or an external tier (LMCache, KV offload) keeps them"
    return "an external tier (LMCache, KV offload) keeps them, so reset that too"


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
        params = {"reset_external": "true"} if attempt % 2 == 0 else None
        try:
            answer = client.call("POST", url, params=params)
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


def _send_again(client: ControlClient, checked: "Preflight", stop: threading.Event) -> list[ProbeResult]:
    results, scrape = [], checked.ranks.scrape
    for probe in checked.probes:
        results.append(send_probe(client, probe, scrape, stop, checked.ranks.not_counting))
        scrape = results[-1].scrape
    return results
