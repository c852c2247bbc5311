"""The cache that the block pool model has to be as large as, from what the engine says about itself."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cachemodel.releases import PoolRules, pool_rules
from contract.engine_version import parse_version
from enginemetrics.snapshot import EngineSnapshot


@dataclass(frozen=True)
class EngineCache:
    """Attributes:
    block_size: tokens per block.
    blocks: rank -> blocks of its pool, the placeholder included; empty when that is not known.
    reason: why `blocks` is empty.
    not_modelled: why the block pool of `cachemodel` does not describe this cache; None when it does.
    version: what the engine states; the order in which blocks are freed depends on it.
    """

    block_size: int
    blocks: Mapping[int, int]
    reason: str | None = None
    not_modelled: str | None = None
    version: str | None = None

    @property
    def rules(self) -> PoolRules:
        return pool_rules(parse_version(self.version))


def engine_cache(
    snapshot: EngineSnapshot | None, planned_block_size: int, version: str | None = None
) -> EngineCache:
    """The caches behind a snapshot; without one, or where it is silent, the block size that was planned for."""
    return replace(_told_cache(snapshot, planned_block_size), version=version)


def _told_cache(snapshot: EngineSnapshot | None, planned_block_size: int) -> EngineCache:
    if snapshot is None:
        return EngineCache(planned_block_size, {}, "there is no scrape from before the load")
    configs = {rank.rank: rank.cache_config for rank in snapshot.ranks}
    first = configs[0]
    if first is None:
        reason = snapshot.ranks[0].unavailable.get("cache_config", "the engine does not say")
        return EngineCache(planned_block_size, {}, reason)
    block_size = first.block_size or planned_block_size
    not_modelled = first.not_one_pool
    blocks = {
        rank: config.blocks_per_rank for rank, config in configs.items() if config and config.blocks_per_rank
    }
    if len(blocks) < len(configs):
        reason = "the engine does not say how many blocks each rank has"
        return EngineCache(block_size, {}, reason, not_modelled)
    return EngineCache(block_size, blocks, None, not_modelled)
