"""What the engine really did: from its counters, and from what it told each request."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analyzer.request_table import Flags, RequestTable
from contract.planned import UNKNOWN
from enginemetrics.difference import EngineDifference, RankDifference, stood_still

DIFFERING_SHOWN = 20


def counter_actual(
    difference: EngineDifference,
    kv_usage: Mapping[int, float | None],
    kv_summary: Mapping[str, Any],
    not_measurable: str | None,
) -> dict[str, Any]:
    """`actual` as documented: queries, hits and rate per rank and in total (reference 4.5).

    With `not_measurable` the counters stand as they are, but no rate is made of them. `reason` is why a rate is null,
    `kv_cache_usage_reason` why peak and average of the KV usage are.
    """
    ranks = difference.ranks
    by_dp = {}
    for rank in ranks:
        kv = kv_summary["by_dp"].get(str(rank.rank), {})
        by_dp[str(rank.rank)] = {
            "queries": rank.queries,
            "hits": rank.hits,
            "hit_rate": None if not_measurable else hit_rate(rank.hits, rank.queries),
            "kv_cache_usage": kv_usage.get(rank.rank),
            "kv_cache_usage_peak": kv.get("peak"),
            "kv_cache_usage_avg": kv.get("avg"),
            "kv_cache_usage_reason": None
            if kv
            else kv_summary["reason"] or "no sample of the load shows this rank's",
            "external": _external([rank]),
            "by_source": _by_source([rank]),
        }
    return {
        "by_dp": by_dp,
        "global_queries": difference.queries,
        "global_hits": difference.hits,
        "global_hit_rate": None if not_measurable else difference.hit_rate,
        "global_kv_cache_usage_peak": kv_summary["global_peak"],
        "global_kv_cache_usage_avg": kv_summary["global_avg"],
        "kv_cache_usage_reason": kv_summary["reason"],
        "unit": difference.unit,
        "external": _external(ranks),
        "by_source": _by_source(ranks),
        "reason": not_measurable or _no_rate(difference),
    }


def no_counters(reason: str) -> dict[str, Any]:
    """`actual` where the two scrapes to subtract are not there."""
    nothing = ("queries", "hits", "hit_rate", "kv_cache_usage_peak", "kv_cache_usage_avg")
    return {
        "by_dp": {},
        **{f"global_{name}": None for name in nothing},
        "kv_cache_usage_reason": reason,
        "unit": None,
        "external": {"queries": None, "hits": None, "hit_rate": None, "reason": reason},
        "by_source": {"prompt_tokens": None, "cached_tokens": None, "reason": reason},
        "reason": reason,
    }


def _no_rate(difference: EngineDifference) -> str | None:
    if difference.hit_rate is not None:
        return None
    for rank in difference.ranks:
        for name in ("queries", "hits"):
            if getattr(rank, name) is None:
                return rank.unavailable.get(name, f"rank {rank.rank} has no {name}")
    return "no queries were counted between the two scrapes"


def why_not_measurable(difference: EngineDifference, requests: RequestTable) -> str | None:
    """Why counters that stood still are no hit rate of 0: the answers say that there were tokens, or hits."""
    answered = requests.answered
    return stood_still(
        difference,
        prompt_tokens=_known_sum(requests.prompt_tokens[answered]),
        cached_tokens=_known_sum(requests.cached_tokens[answered]),
    )


def _known_sum(values: Any) -> int:
    return int(values[values != UNKNOWN].sum())


def hit_rate(hits: int | None, queries: int | None) -> float | None:
    return hits / queries if queries and hits is not None else None


def sum_known(values: Sequence[int | None]) -> int | None:
    """The sum; None when there is none, or one of them is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _first_reason(ranks: Sequence[RankDifference], *names: str) -> str | None:
    reasons = (rank.unavailable.get(name) for name in names for rank in ranks)
    return next((reason for reason in reasons if reason is not None), None)


def _external(ranks: Sequence[RankDifference]) -> dict[str, Any]:
    """Tokens that a KV connector was asked for after the local lookup, and found (vllm.md E.1)."""
    queries = sum_known([rank.external_queries for rank in ranks])
    hits = sum_known([rank.external_hits for rank in ranks])
    unknown = queries is None or hits is None
    reason = _first_reason(ranks, "external_queries", "external_hits") if unknown else None
    if reason is None and queries == 0:
        reason = "nothing was asked of an external cache"
    return {"queries": queries, "hits": hits, "hit_rate": hit_rate(hits, queries), "reason": reason}


def _by_source(ranks: Sequence[RankDifference]) -> dict[str, Any]:
    """Prompt tokens by where they came from, and cached ones by where they were kept."""
    prompt = _sum_parts([rank.prompt_tokens_by_source for rank in ranks])
    cached = _sum_parts([rank.prompt_tokens_cached_by_source for rank in ranks])
    missing = [
        name
        for name, parts in (("prompt_tokens_by_source", prompt), ("prompt_tokens_cached_by_source", cached))
        if parts is None
    ]
    return {
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "reason": _first_reason(ranks, *missing) if missing else None,
    }


def _sum_parts(parts: Sequence[Mapping[str, int] | None]) -> dict[str, int] | None:
    if not parts or any(part is None for part in parts):
        return None
    total: dict[str, int] = {}
    for part in parts:
        for name, value in (part or {}).items():
            total[name] = total.get(name, 0) + value
    return dict(sorted(total.items()))


def client_actual(requests: RequestTable) -> dict[str, Any]:
    """Sums of what the answers reported, in total, per group and per routed rank. None where one answer did not say."""
    plan = requests.plan
    groups = sorted(range(len(plan.groups)), key=lambda number: _group_number(plan.groups[number]))
    return {
        **reported(requests, np.ones(requests.count, dtype=np.bool_)),
        "groups": {plan.groups[number]: reported(requests, plan.group == number) for number in groups},
        "dp": {
            str(rank): reported(requests, plan.rank == rank)
            for rank in np.unique(plan.rank).tolist()
            if rank != UNKNOWN
        },
    }


def _group_number(name: str) -> int:
    return int(name.removeprefix("group-"))


def reported(requests: RequestTable, chosen: Flags) -> dict[str, Any]:
    """Prompt and cached tokens that the answers to the chosen requests reported."""
    answered = chosen & requests.answered
    count = int(answered.sum())
    prompt, cached = requests.prompt_tokens[answered], requests.cached_tokens[answered]
    prompt_tokens = int(prompt.sum()) if count and (prompt != UNKNOWN).all() else None
    cached_tokens = int(cached.sum()) if count and (cached != UNKNOWN).all() else None
    reason = None
    if not count:
        reason = "no request was answered"
    elif cached_tokens is None:
        reason = (
            f"{int((cached == UNKNOWN).sum())} of {count} answers have no usage.prompt_tokens_details.cached_tokens; "
            "start vLLM with --enable-prompt-tokens-details"
        )
    elif prompt_tokens is None:
        reason = f"{int((prompt == UNKNOWN).sum())} of {count} answers have no usage.prompt_tokens"
    return {
        "requests": int(chosen.sum()),
        "answered": count,
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
        "hit_rate": hit_rate(cached_tokens, prompt_tokens),
        "theoretical_hit_tokens": int(requests.plan.theoretical_hit_tokens[chosen].sum()),
        "reason": reason,
    }


def per_request(requests: RequestTable) -> dict[str, Any]:
    """How many requests hit exactly what theory says, and the first that do not. Void ones are not compared."""
    plan = requests.plan
    compared = comparable(requests)
    differing = np.flatnonzero(compared & (requests.cached_tokens != plan.theoretical_hit_tokens))
    known = requests.prompt_tokens != UNKNOWN
    return {
        "compared": int(compared.sum()),
        "equal": int(compared.sum()) - int(differing.size),
        "differing": [
            {
                **describe(requests, position),
                "theoretical_hit_tokens": int(plan.theoretical_hit_tokens[position]),
                "cached_tokens": int(requests.cached_tokens[position]),
            }
            for position in differing[:DIFFERING_SHOWN].tolist()
        ],
        "prompt_tokens_differing": int((known & (requests.prompt_tokens != plan.input_tokens)).sum()),
    }


def comparable(requests: RequestTable) -> Flags:
    """The requests whose cached tokens are known and mean what was planned."""
    flags: Flags = requests.answered & ~requests.void & (requests.cached_tokens != UNKNOWN)
    return flags


def describe(requests: RequestTable, position: int) -> dict[str, Any]:
    """Which request this is."""
    rank = int(requests.plan.rank[position])
    return {
        "request_id": requests.request_id(position),
        "sequence_index": position,
        "group_id": requests.plan.groups[int(requests.plan.group[position])],
        "dp_rank": None if rank == UNKNOWN else rank,
    }


def void_theory(requests: RequestTable) -> dict[str, int]:
    """What failures took from the theory."""
    void = requests.void
    return {
        "failed_requests": requests.failed,
        "void_requests": int(void.sum()),
        "void_input_tokens": int(requests.plan.input_tokens[void].sum()),
        "void_theoretical_hit_tokens": int(requests.plan.theoretical_hit_tokens[void].sum()),
    }
