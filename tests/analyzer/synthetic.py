"""Measurements made by hand: plans, records and scrapes without an engine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from analyzer.analysis import seal_analysis
from analyzer.request_table import RequestTable, request_table
from contract.documents import read_document, write_document
from contract.measurement_file import write_measurement
from contract.parts import part_hashes
from contract.records import REQUEST_SCHEMA, RequestRecord, to_batch
from contract.run_directory import MeasurementDirectory

MODEL = "demo"


def row(position: int, group: str, rank: int | None, hit: int, tokens: int = 100) -> dict[str, Any]:
    return {
        "request_id": f"request-{position:08d}",
        "sequence_index": position,
        "group_id": group,
        "dp_rank": rank,
        "actual_input_tokens": tokens,
        "max_tokens": 3,
        "shared_prefix_tokens": hit,
        "theoretical_hit_tokens": hit,
    }


def record(position: int, cached: int | None, error: Any = None, **changes: Any) -> RequestRecord:
    answered = error is None
    plain = RequestRecord(
        position=position,
        request_id=f"request-{position:08d}",
        group="group-0",
        dp_rank=None,
        lane_sequence=None,
        attempt=1,
        started_ns=position * 1_000_000_000,
        wall_start=1000.0 + position,
        ttft_s=0.1 if answered else None,
        e2el_s=0.2 if answered else None,
        itl_s=(0.05, 0.05) if answered else (),
        chunks=3 if answered else 0,
        http_status=200 if answered else None,
        error_kind=error,
        error_text=error,
        prompt_tokens=100 if answered else None,
        completion_tokens=3 if answered else None,
        cached_tokens=cached,
        finish_reason="length" if answered else None,
    )
    return plain._replace(**changes)


def write_records(directory: MeasurementDirectory, records: Sequence[RequestRecord]) -> None:
    """As Parquet, in two batches where there is more than one record."""
    middle = len(records) // 2
    with pq.ParquetWriter(directory.requests, REQUEST_SCHEMA) as writer:
        for part in (records[:middle], records[middle:]):
            writer.write_batch(to_batch(part))


def measured(folder: Path, rows: list[dict[str, Any]], records: Sequence[RequestRecord]) -> RequestTable:
    full = folder / "full.jsonl"
    full.write_bytes(b"".join(orjson.dumps(item) + b"\n" for item in rows))
    directory = MeasurementDirectory(folder)
    write_records(directory, records)
    return request_table(full, directory)


def edit_measurement(directory: MeasurementDirectory, **fields: Any) -> None:
    """As the run would have written it: with other fields, the parts that lie there now, and a seal."""
    document = read_document(directory.measurement, "measurement")
    document |= {"parts": part_hashes(directory, {})} | fields
    write_measurement(directory.measurement, document)


def edit_analysis(directory: MeasurementDirectory, document: dict[str, Any]) -> None:
    """As `analyze` would have written it."""
    write_document(directory.analysis, seal_analysis(document))


def scrape_text(
    ranks: Mapping[int, Mapping[str, int]], *, unit: str = "tokens", config: Mapping[str, Any] | None = None
) -> str:
    """A metrics page. Per rank: a metric's name (with more labels, where it has some) without `vllm:` -> value.

    `queries` and `hits` stand for the counters of the unit.
    """
    prefix = "gpu_prefix_cache" if unit == "blocks" else "prefix_cache"
    lines = []
    for rank, values in ranks.items():
        labels = f'engine="{rank}",model_name="{MODEL}"'
        for name, value in values.items():
            if name in ("queries", "hits"):
                name = f"{prefix}_{name}_total"
            metric, _, more = name.partition("{")
            extra = "," + more.rstrip("}") if more else ""
            lines.append(f"vllm:{metric}{{{labels}{extra}}} {value}.0")
        if config is not None:
            told = ",".join(f'{key}="{value}"' for key, value in config.items())
            lines.append(f'vllm:cache_config_info{{engine="{rank}",{told}}} 1.0')
    return "\n".join(lines) + "\n"


def all_counters(queries: int, hits: int, external: int = 0, written: int = 0) -> dict[str, int]:
    """What one rank of a recent engine exposes after this traffic. Hits are its own, without the external ones."""
    return {
        "queries": queries,
        "hits": hits,
        "prompt_tokens_total": queries,
        'prompt_tokens_by_source_total{source="local_compute"}': queries - hits - external,
        'prompt_tokens_by_source_total{source="local_cache_hit"}': hits,
        'prompt_tokens_by_source_total{source="external_kv_transfer"}': external,
        "prompt_tokens_cached_total": hits + external,
        "request_prompt_tokens_sum": queries,
        "request_prefill_kv_computed_tokens_sum": queries - hits - external,
        "external_prefix_cache_queries_total": queries - hits if external else 0,
        "external_prefix_cache_hits_total": external,
        "num_preemptions_total": 0,
        "generation_tokens_total": written,
    }
