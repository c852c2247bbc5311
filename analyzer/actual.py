"""What the engine really did: from its counters, and from what it told each request."""

from collections.abc import Sequence
from typing import Any

from analyzer.request_table import MeasuredRequest
from enginemetrics.difference import EngineDifference, RankDifference

DIFFERING_SHOWN = 20


def counter_actual(
    difference: EngineDifference, kv_usage: dict[int, float | None], kv_summary: dict[str, Any]
) -> dict[str, Any]:
    """`actual` as documented: queries, hits and rate per rank and in total (reference 4.5)."""
    by_dp = {}
    for rank in difference.ranks:
        kv = kv_summary["by_dp"].get(str(rank.rank), {})
        by_dp[str(rank.rank)] = {
            "queries": rank.queries,
            "hits": rank.hits,
            "hit_rate": _rate(rank),
            "kv_cache_usage": kv_usage.get(rank.rank),
            "kv_cache_usage_peak": kv.get("peak"),
            "kv_cache_usage_avg": kv.get("avg"),
        }
    return {
        "by_dp": by_dp,
        "global_queries": difference.queries,
        "global_hits": difference.hits,
        "global_hit_rate": difference.hit_rate,
        "global_kv_cache_usage_peak": kv_summary["global_peak"],
        "global_kv_cache_usage_avg": kv_summary["global_avg"],
        "unit": difference.unit,
    }


def _rate(rank: RankDifference) -> float | None:
    return rank.hits / rank.queries if rank.queries and rank.hits is not None else None


def client_actual(requests: Sequence[MeasuredRequest]) -> dict[str, Any]:
    """Sums of what the answers reported, in total, per group and per routed rank. None where one answer did not say."""
    routed = any(request.rank is not None for request in requests)
    ranks = sorted({request.rank for request in requests if request.rank is not None})
    groups = sorted({request.group for request in requests}, key=_group_number)
    return {
        **_reported(requests),
        "groups": {name: _reported([r for r in requests if r.group == name]) for name in groups},
        "dp": {str(rank): _reported([r for r in requests if r.rank == rank]) for rank in ranks}
        if routed
        else {},
    }


def _group_number(name: str) -> int:
    return int(name.removeprefix("group-"))


def _reported(requests: Sequence[MeasuredRequest]) -> dict[str, Any]:
    answered = [request.record for request in requests if request.answered and request.record]
    prompt = [record.prompt_tokens for record in answered]
    cached = [record.cached_tokens for record in answered]
    prompt_tokens = None if None in prompt else sum(value for value in prompt if value is not None)
    cached_tokens = None if None in cached else sum(value for value in cached if value is not None)
    reason = None
    if not answered:
        prompt_tokens = cached_tokens = None
        reason = "no request was answered"
    elif cached_tokens is None:
        reason = (
            f"{cached.count(None)} of {len(cached)} answers have no usage.prompt_tokens_details.cached_tokens; "
            "start vLLM with --enable-prompt-tokens-details"
        )
    return {
        "requests": len(requests),
        "answered": len(answered),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
        "hit_rate": cached_tokens / prompt_tokens if cached_tokens is not None and prompt_tokens else None,
        "theoretical_hit_tokens": sum(request.theoretical_hit_tokens for request in requests),
        "reason": reason,
    }


def per_request(requests: Sequence[MeasuredRequest]) -> dict[str, Any]:
    """How many requests hit exactly what theory says, and the first that do not. Void ones are not compared."""
    compared = [
        request
        for request in requests
        if request.answered
        and not request.void
        and request.record
        and request.record.cached_tokens is not None
    ]
    differing = [r for r in compared if r.record and r.record.cached_tokens != r.theoretical_hit_tokens]
    wrong_length = [
        r
        for r in requests
        if r.record and r.record.prompt_tokens is not None and r.record.prompt_tokens != r.input_tokens
    ]
    return {
        "compared": len(compared),
        "equal": len(compared) - len(differing),
        "differing": [
            {
                "request_id": r.request_id,
                "sequence_index": r.position,
                "group_id": r.group,
                "dp_rank": r.rank,
                "theoretical_hit_tokens": r.theoretical_hit_tokens,
                "cached_tokens": r.record.cached_tokens if r.record else None,
            }
            for r in differing[:DIFFERING_SHOWN]
        ],
        "prompt_tokens_differing": len(wrong_length),
    }


def void_theory(requests: Sequence[MeasuredRequest]) -> dict[str, int]:
    """What failures took from the theory."""
    void = [request for request in requests if request.void]
    return {
        "failed_requests": sum(not request.answered for request in requests),
        "void_requests": len(void),
        "void_input_tokens": sum(request.input_tokens for request in void),
        "void_theoretical_hit_tokens": sum(request.theoretical_hit_tokens for request in void),
    }
