"""What an engine tells about its prefix cache, the same for all its ranks."""

from dataclasses import dataclass

from enginemetrics.snapshot import EngineSnapshot


@dataclass(frozen=True)
class EngineCache:
    """None where the engine does not report, or its ranks do not agree; then `reason` says why.

    match_unit: tokens that hit together; the block size, unless the engine says otherwise. tokens_per_rank: what the KV
    cache of the smallest rank holds. blocks_per_rank: its blocks, the placeholder included. not_one_pool: why a pool of
    blocks of one kind does not describe this cache, None when it does.
    """

    enabled: bool | None = None
    match_unit: int | None = None
    tokens_per_rank: int | None = None
    blocks_per_rank: int | None = None
    not_one_pool: str | None = None
    reason: str | None = None


def engine_cache(snapshot: EngineSnapshot) -> EngineCache:
    configs = [rank.cache_config for rank in snapshot.ranks]
    known = [config for config in configs if config is not None]
    if len(known) < len(configs):
        return EngineCache(reason="the engine does not expose vllm:cache_config_info")
    enabled = {config.enable_prefix_caching for config in known}
    units = {config.match_unit for config in known}
    sizes = {config.capacity_tokens for config in known}
    reason = None
    if len(units) > 1:
        reason = f"the ranks have blocks of {' and '.join(map(str, sorted(map(str, units))))} tokens"
    return EngineCache(
        enabled=False if False in enabled else True if enabled == {True} else None,
        match_unit=units.pop() if len(units) == 1 else None,
        tokens_per_rank=min((size for size in sizes if size is not None), default=None),
        blocks_per_rank=min(
            (config.blocks_per_rank for config in known if config.blocks_per_rank), default=None
        ),
        not_one_pool=next(filter(None, (config.not_one_pool for config in known)), None),
        reason=reason,
    )
