"""Reading an engine's Prometheus text: names and units by version, ranks, KV capacity, differences, settling."""

from enginemetrics.difference import EngineDifference, Finding, RankDifference, subtract
from enginemetrics.exposition import parse_exposition
from enginemetrics.names import Unit
from enginemetrics.settling import Settling, is_idle, same_counters, settling
from enginemetrics.snapshot import CacheConfig, EngineSnapshot, MetricNames, RankMetrics, read_snapshot

__all__ = [
    "CacheConfig",
    "EngineDifference",
    "EngineSnapshot",
    "Finding",
    "MetricNames",
    "RankDifference",
    "RankMetrics",
    "Settling",
    "Unit",
    "is_idle",
    "parse_exposition",
    "read_snapshot",
    "same_counters",
    "settling",
    "subtract",
]
