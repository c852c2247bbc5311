"""How many tokens a GB of KV cache holds, and how large the tier is that a workload overflows."""

from dataclasses import dataclass

from contract.errors import ScenarioError, ServiceError
from contract.foreign import decimal_number
from runner.bench.engine import BenchEngine
from runner.bench.lmcache import GB, LmCache
from runner.bench.settings import Settings

HOW_TO_COMPUTE = (
    "vLLM's log at its start has the two numbers: "
    '"Available KV cache memory: 12.34 GiB" and "GPU KV cache size: 567,890 tokens"; '
    "567890 / 12.34 = 46020, so --tokens-per-gb-kvcache 46020"
)


@dataclass(frozen=True)
class Size:
    """`source` says where the number comes from."""

    tokens_per_gb: int | None
    source: str


def tokens_per_gb(settings: Settings, engine: BenchEngine) -> Size:
    """As given, else from LMCache, else from the engine's metrics.

    Raises:
        ScenarioError: nobody knows, and the workload needs it.
        ServiceError: LMCache was named and cannot tell.
    """
    general = settings.general
    if general.tokens_per_gb_kvcache is not None:
        return Size(general.tokens_per_gb_kvcache, "given")
    if general.lmcache_url is not None:
        return Size(
            LmCache(general.lmcache_url, general.trust).tokens_per_gb(engine.model), "LMCache's /status"
        )
    told = told_by_engine(engine)
    if told is not None:
        return Size(told, "vllm:cache_config_info (kv_cache_size_tokens, kv_cache_memory_bytes)")
    if settings.workload.needs_size:
        raise ScenarioError(
            f"--tokens-per-gb-kvcache: {settings.workload.name} needs it, and the engine's metrics do not report it. "
            f"{HOW_TO_COMPUTE}; or give --lmcache-url"
        )
    return Size(None, "not known, and not needed")


def told_by_engine(engine: BenchEngine) -> int | None:
    """Tokens in a GB by the engine's own metrics; None where they do not report."""
    if engine.cache is None or engine.cache.kv_cache_size_tokens is None:
        return None
    size = decimal_number(engine.cache.labels.get("kv_cache_memory_bytes"))
    return round(engine.cache.kv_cache_size_tokens / (size / GB)) if size else None


def tier_tokens(settings: Settings, engine: BenchEngine, size: Size) -> int | None:
    """Tokens in LMCache's memory tier, else in the engine's own cache; None when neither tells."""
    if settings.general.lmcache_url is not None and size.tokens_per_gb is not None:
        try:
            return (
                LmCache(settings.general.lmcache_url, settings.general.trust).memory_bytes()
                * size.tokens_per_gb
                // GB
            )
        except ServiceError:
            if getattr(settings.parameters, "ktp_pool_size", None) is None:
                raise
            return None  # the pool is given; the tier would only be shown
    return engine.cache.capacity_tokens if engine.cache is not None else None
