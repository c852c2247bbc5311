"""Which metric holds what, by engine version.

Sources: vLLM's `v1/metrics/loggers.py` from 0.8.5 to 0.33.0. Within one quantity the first name that is present
wins, for the whole snapshot. Newer versions expose counters with `_total`; texts without the suffix exist in
older versions, in proxies and in recorded files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["tokens", "blocks"]


@dataclass(frozen=True, slots=True)
class CacheCounterNames:
    """A pair of counters of the engine's own prefix cache and what they count."""

    queries: str
    hits: str
    unit: Unit


# vLLM 0.9.0 to 0.11.2 expose both families, both in tokens; the new names then win. A text that has only the
# `gpu_` names comes from 0.8.x, which counts full blocks (PR #18354 changed the unit together with the names).
PREFIX_CACHE_COUNTERS = (
    CacheCounterNames("vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "tokens"),
    CacheCounterNames("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "tokens"),
    CacheCounterNames("vllm:gpu_prefix_cache_queries", "vllm:gpu_prefix_cache_hits", "blocks"),
    CacheCounterNames("vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total", "blocks"),
)


def _counter(name: str) -> tuple[str, str]:
    return name, f"{name}_total"


# Fields of `snapshot.Ledgers`, one number per rank.
COUNTERS: dict[str, tuple[str, ...]] = {
    "prompt_tokens": _counter("vllm:prompt_tokens"),
    "prompt_tokens_cached": _counter("vllm:prompt_tokens_cached"),
    "generation_tokens": _counter("vllm:generation_tokens"),
    "preemptions": _counter("vllm:num_preemptions"),
    "external_queries": _counter("vllm:external_prefix_cache_queries"),
    "external_hits": _counter("vllm:external_prefix_cache_hits"),
    "mm_cache_queries": _counter("vllm:mm_cache_queries"),
    "mm_cache_hits": _counter("vllm:mm_cache_hits"),
    "prefill_kv_computed_tokens_sum": ("vllm:request_prefill_kv_computed_tokens_sum",),
    "request_prompt_tokens_sum": ("vllm:request_prompt_tokens_sum",),
}

# Fields of `snapshot.Ledgers`, one number per value of a label: field -> (names, label).
BREAKDOWNS: dict[str, tuple[tuple[str, ...], str]] = {
    "prompt_tokens_by_source": (_counter("vllm:prompt_tokens_by_source"), "source"),
    "prompt_tokens_cached_by_source": (_counter("vllm:prompt_tokens_cached_by_source"), "source"),
    "request_success": (_counter("vllm:request_success"), "finished_reason"),
}

# Fields of `snapshot.RankMetrics` that go up and down.
GAUGES: dict[str, tuple[str, ...]] = {
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "requests_running": ("vllm:num_requests_running",),
    "requests_waiting": ("vllm:num_requests_waiting",),
}


def newest(names: Sequence[str]) -> str:
    """Of the names of one quantity the one that the newest engines use: for messages."""
    return names[-1] if names[-1].endswith("_total") else names[0]


# How families begin that exist only where the feature is on.
SPECULATION = "vllm:spec_decode_"
KV_OFFLOADING = ("vllm:kv_offload_", "vllm:simple_kv_offload_")

CACHE_CONFIG_INFO = "vllm:cache_config_info"
# Labels of it, the most telling first; see `snapshot.CacheConfig.match_unit`.
MATCH_UNIT_LABELS = (
    "cache_hit_alignment_tokens",
    "prefix_match_unit",
    "effective_attention_block_size",
    "block_size",
)
PROCESS_START_TIME = "process_start_time_seconds"

# How the families of a router's own page begin, and whose they are. No engine exposes any of them.
ROUTERS = {
    "vllm_router_": "vllm-router",
    "smg_": "smg or sglang-router",
    "dynamo_frontend_": "Dynamo's front end",
    "llm_d_epp_": "llm-d's router",
}
