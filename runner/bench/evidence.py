"""What the cache did: counter differences, answers, and the block model, side by side."""

from typing import Any

from contract.bench import CacheEvidence
from enginemetrics.difference import EngineDifference, stood_still, subtract
from runner.bench.expectation import Expected, by_stage
from runner.bench.stage import SentStage
from runner.control import Scrape

DIFFERING_SHOWN = 20


def cache_evidence(
    stage: SentStage,
    before: Scrape | None,
    after: Scrape | None,
    no_metrics: str | None,
    *,
    not_counting: str | None = None,
) -> CacheEvidence:
    """What counters and answers say of a stage. `no_metrics`, `not_counting`: why the counters say nothing."""
    cached = [record.cached_tokens for record in stage.answered]
    known = [tokens for tokens in cached if tokens is not None]
    values: dict[str, Any] = {
        "stage": stage.name,
        "prompt_tokens": sum(record.prompt_tokens or 0 for record in stage.answered),
        "cached_tokens": sum(known) if cached and len(known) == len(cached) else None,
    }
    unavailable: dict[str, str] = {}
    if values["cached_tokens"] is None:
        unavailable["cached_tokens"] = (
            "no request was answered"
            if not cached
            else "the answers do not report (start vLLM with --enable-prompt-tokens-details)"
        )
    if before is None or after is None:
        unavailable["hit_tokens"] = no_metrics or "there is no scrape from after the phase"
        return CacheEvidence(**values, unavailable=unavailable)
    difference = subtract(before.snapshot, after.snapshot)
    reason = not_counting or _no_hits(difference, values["prompt_tokens"], sum(known))
    if reason is None:
        values["query_tokens"], values["hit_tokens"] = difference.queries, difference.hits
    else:
        unavailable["hit_tokens"] = reason
    external = [(rank.external_queries, rank.external_hits) for rank in difference.ranks]
    if external and all(queries is not None and hits is not None for queries, hits in external):
        values["external_query_tokens"] = sum(queries or 0 for queries, _ in external)
        values["external_hit_tokens"] = sum(hits or 0 for _, hits in external)
    else:
        unavailable["external_hit_tokens"] = "the engine has no KV connector's counters"
    return CacheEvidence(**values, unavailable=unavailable)


def _no_hits(difference: EngineDifference, prompt_tokens: int, cached_tokens: int) -> str | None:
    if difference.findings:
        return difference.findings[0].message
    if difference.unit != "tokens":
        return "the engine counts blocks, not tokens"
    return stood_still(difference, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)


def prediction(
    stage: SentStage, expected: dict[str, Expected], reason: str | None, evidence: CacheEvidence
) -> dict[str, Any]:
    bounds = by_stage(expected, (record.request_id for record in stage.answered))
    unavailable = dict(evidence.unavailable)
    if reason is not None:
        unavailable["predicted"] = reason
    elif bounds is None:
        unavailable["predicted"] = "a request does not fit the modelled cache"
    compared = [
        (record.request_id, expected[record.request_id].agrees(record.cached_tokens))
        for record in stage.answered
        if record.cached_tokens is not None
        and record.request_id in expected
        and expected[record.request_id].least is not None
    ]
    return {
        "predicted_least": None if bounds is None else bounds[0],
        "predicted_most": None if bounds is None else bounds[1],
        "compared": len(compared),
        "as_predicted": sum(agrees for _, agrees in compared),
        "differing": [request_id for request_id, agrees in compared if not agrees][:DIFFERING_SHOWN],
        "unavailable": unavailable,
    }
