"""The main job on a real engine, as a user runs it, and the ledgers that must be equal."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from contract.rows import read_rows
from contract.run_directory import RunDirectory
from tests.real.engine import RunningEngine
from tests.shared_data import SHARED_DATA

GSM8K = SHARED_DATA / "gsm8k_test.jsonl"
HITLAB = Path(sys.executable).with_name("hitlab")
MIXED = {"mode": "truncated_normal", "min": 200, "max": 2000, "mean": 900, "std": 500}


LEDGERS = ("counters", "by_source", "cached_tokens", "computed", "prediction")
"""What the engine counted in four ways, and the block-exact model."""


def scenario(engine: RunningEngine, tokenizer: Path, folder: Path, **sections: Any) -> Path:
    document: dict[str, Any] = {
        "run": {"run_id": "real", "output_dir": str(folder / "outputs")},
        "tokenizer": {"path": str(tokenizer), "block_size": engine.block_size},
        "corpus": {"path": str(GSM8K) if GSM8K.is_file() else "builtin:word-problems"},
        "service": {
            "inference_url": f"{engine.url}/v1/completions",
            "metrics_url": f"{engine.url}/metrics",
            "reset_url": f"{engine.url}/reset_prefix_cache",
            "model": engine.model,
            "dp_size": engine.ranks,
            "timeout_seconds": 120,
            "poll_interval_seconds": 0.5,
        },
        "driver": {"kind": "native", "concurrency": 8},
        **sections,
    }
    path = folder / "scenario.json"
    path.write_text(json.dumps(document))
    return path


def hitlab(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([HITLAB, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def prepare(path: Path) -> RunDirectory:
    printed = json.loads(hitlab("prepare", "--scenario", str(path), "--mode", "text").stdout)
    hitlab("validate", "--manifest", printed["manifest"])
    return RunDirectory.of_manifest(Path(printed["manifest"]))


def run(path: Path, directory: RunDirectory) -> dict[str, Any]:
    printed = hitlab("run", "--scenario", str(path)).stdout
    assert "Overall Actual Hit Rate" in printed
    assert str(directory.analysis) in printed
    analysis: dict[str, Any] = json.loads(directory.analysis.read_text())
    return analysis


def assert_equal_to_the_token(analysis: dict[str, Any], directory: RunDirectory) -> None:
    """Every ledger against every other, from the artifacts themselves and not from HitLab's own comparison."""
    rows = list(read_rows(directory.full))
    theory = sum(row["theoretical_hit_tokens"] for row in rows)
    planned = sum(row["actual_input_tokens"] for row in rows)
    actual = analysis["actual"]
    assert theory > 0
    assert actual["global_hits"] == theory
    assert actual["global_queries"] == planned
    records = pq.read_table(
        directory.runs / analysis["runtime"]["measurement"] / "requests.parquet"
    ).to_pylist()
    assert len(records) == len(rows)
    cached = {record["position"]: record["cached_tokens"] for record in records}
    assert cached == {row["sequence_index"]: row["theoretical_hit_tokens"] for row in rows}
    for group in {row["group_id"] for row in rows}:
        expected = sum(row["theoretical_hit_tokens"] for row in rows if row["group_id"] == group)
        assert actual["client"]["groups"][group]["cached_tokens"] == expected
    for rank in {row["dp_rank"] for row in rows} - {None}:
        expected = sum(row["theoretical_hit_tokens"] for row in rows if row["dp_rank"] == rank)
        assert actual["by_dp"][str(rank)]["hits"] == expected
        assert analysis["theory"]["dp"][str(rank)]["hit_tokens"] == expected
    for name in LEDGERS:
        assert analysis["ledgers"][name]["total"]["hits"] == theory, name
        assert analysis["ledgers"][name]["total"]["queries"] == planned, name
    assert analysis["ledgers"]["agree"] is True
    written = analysis["ledgers"]["output_tokens"]
    assert written["counters"] == written["answers"] == sum(r["completion_tokens"] for r in records)
    assert analysis["agreement"]["hits_equal"] is True
    assert analysis["agreement"]["queries_equal"] is True
    assert analysis["status"] == "complete"
    # How full the load was is another matter than its tokens, and depends on the machine and on how even the lanes are.
    light = any(warning["code"] == "CONCURRENCY_NOT_REACHED" for warning in analysis["warnings"])
    assert analysis["validation"]["actual_status"] in ({"PASS", "PASS_WITH_WARNING"} if light else {"PASS"})
