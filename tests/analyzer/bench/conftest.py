"""The run directory of a bench, made by hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contract.bench import ANSWERS, BenchMeasurement
from contract.documents import write_document
from contract.kinds import BENCH
from contract.manifest import Manifest, seal
from contract.measurement_file import write_measurement
from contract.parts import part_hashes
from contract.records import RequestRecord, to_batch
from contract.run_directory import MeasurementDirectory, RunDirectory
from tests.runner.bench.records import record

STAMP = "20260101_000000"
SETTINGS = {
    "model": "m",
    "workload": "long-doc-qa",
    "kv_cache_volume": 1.0,
    "tokens_per_gb_kvcache": 6000,
    "seed": 42,
    "ignore_eos": False,
    "no_warmup": False,
    "timeout": 600.0,
    "reset_cache": False,
    "tokenizer": None,
    "ldqa_document_length": 1500,
}
RAG = {
    "rag_dataset": "musique",
    "rag_num_samples": 2,
    "rag_max_output_length": 64,
    "rag_doc_align_tokens": 256,
    "rag_template_kwargs": {},
}


@dataclass(frozen=True)
class Made:
    manifest: Manifest
    directory: MeasurementDirectory


Make = Callable[..., Made]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(
        records: Sequence[RequestRecord] = (record(0), record(1)),
        *,
        settings: dict[str, Any] | None = None,
        answers: Sequence[dict[str, Any]] = (),
        **changes: Any,
    ) -> Made:
        root = tmp_path / "bench-x_20260101_000000"
        run = RunDirectory(root, f"bench-x_{STAMP}")
        (run.runs / STAMP).mkdir(parents=True)
        (root / "log").mkdir()
        document = seal(
            {
                "schema_version": "1.0",
                "kind": BENCH,
                "status": "prepared",
                "run_id": run.run_id,
                "workload": "long-doc-qa",
                "created_at": "2026-01-01T00:00:00.000+00:00",
                "settings": SETTINGS | (settings or {}),
                "engine_url": "http://e",
                "lmcache_url": None,
                "size_source": "given",
                "tokenizer": "t",
                "facts": {"Working set (tokens)": 6000, "Documents": 4},
                "fact_order": ["Working set (tokens)", "Documents"],
                "phases": [],
                "skipped_phases": [],
                "fingerprint": "0123456789abcdef",
                "fingerprint_parts": {"model": "m"},
                "invocation": {"output_dir": ".", "export_csv": True, "export_json": True, "quiet": False},
                "versions": {"hitlab": "0", "python": "3", "engine": "0.32.0"},
                "host": {"name": "h", "system": "s", "cpus": 2},
                "effective_config": {"run": {"run_id": "bench-x"}},
            }
        )
        manifest = Manifest(run, document)
        write_document(run.manifest, document)
        directory = MeasurementDirectory(run.runs / STAMP)
        pq.write_table(pa.Table.from_batches([to_batch(list(records))]), directory.requests)
        if answers:
            (directory.root / ANSWERS).write_bytes(b"".join(orjson.dumps(a) + b"\n" for a in answers))
        load = {
            "driver": "native", "concurrency": 3, "stream": True, "retries": 0, "timeout_seconds": 600.0,
            "started": 2, "finished": 2, "failed": 0, "aborted": 0, "retried": 0, "wall_seconds": 4.0,
            "mean_in_flight": 1.5, "max_in_flight": 2, "lane_wait_seconds": 0.0,
        }  # fmt: skip
        values: dict[str, Any] = {
            "status": "complete",
            "run_id": run.run_id,
            "stamp": STAMP,
            "manifest_sha256": manifest.sha256,
            "started_at": "2026-01-01T00:00:00.000+00:00",
            "service": {"model": "m", "dp_size": 1},
            "validation": {},
            "load": load,
        }
        measurement = BenchMeasurement.model_validate(values | changes)
        measurement = measurement.model_copy(update={"parts": part_hashes(directory, {})})
        write_measurement(directory.measurement, measurement.model_dump(mode="json"))
        return Made(manifest, directory)

    return made
