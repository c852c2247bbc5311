"""What a measurement does and finds, in the lines of a log."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from contract.command_log import bounded
from contract.measurement import AisbenchRecord, Check, EngineRecord, LoadRecord, WarmupRecord
from enginemetrics.snapshot import EngineSnapshot

IN_THE_MEASUREMENT = "measurement.json has them all"


def begin_lines(
    manifest: str, measurement: str, config: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Iterator[str]:
    """Which data is measured, where the measurement goes, and with which settings."""
    yield f"data {manifest}"
    yield f"measurement {measurement}"
    for section in ("service", "validation", "driver", "engine", "aisbench"):
        yield f"setting {section}: {orjson.dumps(config[section]).decode()}"
    if overrides:
        yield f"command line: {orjson.dumps(overrides).decode()}"


def check_lines(checks: Iterable[Check]) -> Iterator[str]:
    """Every check with what it found."""
    yield from bounded(
        (f"check {check.name}: {check.status}: {check.detail}" for check in checks), IN_THE_MEASUREMENT
    )


def engine_line(engine: EngineRecord) -> str:
    """What the engine told about itself."""
    return (
        f"engine: {engine.kind}, version {engine.version}, model {engine.model}, blocks of {engine.block_size}, "
        f"max_model_len {engine.max_model_len}, blocks per rank {engine.num_gpu_blocks}"
    )


def warmup_lines(warmup: Iterable[WarmupRecord]) -> Iterator[str]:
    """Each warmup with its time, in seconds, and its tokens."""
    yield from bounded(
        (
            f"warmup {item.group_id} on rank {item.dp_rank}: {'answered' if item.success else 'not answered'}, "
            f"{item.elapsed_seconds} s, {item.prompt_tokens} tokens, {item.cached_tokens} of them cached"
            for item in warmup
        ),
        IN_THE_MEASUREMENT,
    )


def counter_lines(name: str, snapshot: EngineSnapshot) -> Iterator[str]:
    """The counters of a scrape, per rank."""
    yield from bounded(
        (
            f"{name}: rank {rank.rank}: queries {rank.queries}, hits {rank.hits} ({snapshot.unit}), KV usage "
            f"{rank.kv_cache_usage}, running {rank.requests_running}, waiting {rank.requests_waiting}"
            for rank in snapshot.ranks
        ),
        "the scrape has them all",
    )


def load_lines(load: LoadRecord, aisbench: AisbenchRecord | None) -> Iterator[str]:
    """How the load went."""
    yield f"load: {orjson.dumps(load.model_dump(mode='json')).decode()}"
    if aisbench is not None:
        yield f"AISBench: {orjson.dumps(aisbench.model_dump(mode='json')).decode()}"
