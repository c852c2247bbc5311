"""Prepared data, and measurements of it made by hand."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from contract.manifest import Manifest, read_prepared_manifest
from contract.measurement import EngineRecord, Finding, LoadRecord, Measurement
from contract.measurement_file import write_measurement
from contract.parts import part_hashes
from contract.records import RequestRecord
from contract.rows import read_rows
from contract.run_directory import MeasurementDirectory
from generator.prepare import prepare
from tests.analyzer.synthetic import MODEL, all_counters, record, scrape_text, write_records

BLOCK = 16
OUTPUT_TOKENS = 4


@pytest.fixture(scope="session")
def prepared_once(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run directory per mode, to be copied."""
    found = {}
    for mode, ranks in (("warmup", 1), ("warmup", 2), ("cold", 2)):
        folder = tmp_path_factory.mktemp("prepared")
        scenario = folder / "scenario.json"
        scenario.write_text(
            json.dumps(
                {
                    "run": {"run_id": "made", "output_dir": str(folder / "out")},
                    "tokenizer": {"path": "builtin:demo", "block_size": BLOCK},
                    "corpus": {"path": "builtin:word-problems"},
                    "requests": {
                        "count": 24,
                        "input_length": {"mode": "truncated_normal", "min": 64, "max": 300},
                        "output_length": {"mode": "fixed", "value": 4},
                    },
                    "prefix_cache": {"mode": mode, "target_hit_rate": 0.5, "groups": {"count": 3}},
                    "service": {"model": MODEL, "dp_size": ranks},
                }
            )
        )
        found[f"{mode}-{ranks}"] = Path(prepare(scenario)["manifest"])
    return found


@dataclass
class Made:
    """A measurement by hand. The engine is exact unless a test says otherwise."""

    manifest: Manifest
    rows: list[dict[str, Any]]
    ranks: int
    config: dict[str, Any] = field(default_factory=dict)

    def records(self, **changes: Any) -> list[RequestRecord]:
        """One answer per request, one after another, with the hits of the theory."""
        return [
            record(
                row["sequence_index"],
                row["theoretical_hit_tokens"],
                request_id=row["request_id"],
                group=row["group_id"],
                dp_rank=row["dp_rank"],
                prompt_tokens=row["actual_input_tokens"],
                completion_tokens=OUTPUT_TOKENS,
                **changes,
            )
            for row in self.rows
        ]

    def counters(self) -> dict[int, dict[str, int]]:
        """What exact counters move by, per rank. In warmup mode the service has used rank 0 only."""
        moved = {}
        for rank in range(self.ranks):
            mine = [row for row in self.rows if (row["dp_rank"] or 0) == rank]
            moved[rank] = all_counters(
                sum(row["actual_input_tokens"] for row in mine),
                sum(row["theoretical_hit_tokens"] for row in mine),
                written=OUTPUT_TOKENS * len(mine),
            )
        return moved

    def write(
        self,
        records: Sequence[RequestRecord] | None = None,
        counters: dict[int, dict[str, int]] | None = None,
        *,
        stamp: str = "20260101_000000",
        version: str | None = "0.32.0",
        unit: str = "tokens",
        findings: Sequence[Finding] = (),
        after: bool = True,
        **fields: Any,
    ) -> MeasurementDirectory:
        """Everything a run leaves in `runs/<stamp>/`. Counters began at 1000."""
        directory = MeasurementDirectory(self.manifest.directory.runs / stamp)
        directory.root.mkdir(parents=True)
        records = self.records() if records is None else records
        counters = self.counters() if counters is None else counters
        config = {"block_size": BLOCK, "num_gpu_blocks": 100_000 * self.ranks} | self.config
        before = {rank: dict.fromkeys(values, 1000) for rank, values in counters.items()}
        later = {
            rank: {name: value + 1000 for name, value in values.items()} for rank, values in counters.items()
        }
        directory.baseline.write_text(scrape_text(before, unit=unit, config=config))
        if after:
            directory.after.write_text(scrape_text(later, unit=unit, config=config))
        write_records(directory, records)
        failed = sum(item.error_kind is not None for item in records)
        service = self.manifest.effective_config["service"]
        state: dict[str, Any] = {
            "status": "complete" if not failed else "partial",
            "run_id": self.manifest.document["run_id"],
            "stamp": stamp,
            "manifest_sha256": self.manifest.sha256,
            "started_at": "2026-01-01T00:00:00.000+00:00",
            "service": service,
            "validation": self.manifest.effective_config["validation"],
            "engine": EngineRecord(
                kind="external", inference_url="http://x", metrics_urls=["http://x"], reset_url=None,
                model=MODEL, version=version, max_model_len=None, block_size=BLOCK, num_gpu_blocks=[None],
            ),
            "load": LoadRecord(
                driver="native", concurrency=2, stream=True, retries=0, timeout_seconds=9.0,
                started=len(records), finished=len(records) - failed, failed=failed, aborted=0, retried=0,
                wall_seconds=30.0, mean_in_flight=0.2, max_in_flight=1, lane_wait_seconds=0.0,
            ),
            "settled": True,
            "findings": list(findings),
        }  # fmt: skip
        running = fields.get("status") == "running"
        state["parts"] = part_hashes(directory, {}) if not running else {}
        measurement = Measurement(**state | fields)
        write_measurement(directory.measurement, measurement.model_dump(mode="json"))
        return directory


Make = Callable[..., Made]


@pytest.fixture
def make(prepared_once: dict[str, Path], tmp_path: Path) -> Make:
    def made(kind: str = "cold-2", **config: Any) -> Made:
        source = prepared_once[kind]
        folder = tmp_path / f"{kind}_copy"
        shutil.copytree(source.parent.parent, folder)
        manifest = read_prepared_manifest(folder / "result" / source.name)
        rows = list(read_rows(manifest.directory.full))
        return Made(manifest, rows, int(manifest.document["dp"]["size"]), config)

    return made
