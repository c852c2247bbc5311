"""A run with images on real vision engines: block arithmetic and every ledger, to the token."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import requests

from contract.run_directory import RunDirectory
from tests.mmmu import FULL_HD, HD, picture, write_mmmu
from tests.real.engine import RunningEngine
from tests.real.job import hitlab

COUNT, TEXT, BLOCK = 60, 30, 32
TEXT_ENDS_WITH = 5  # <|im_end|> \n <|im_start|> assistant \n
LEDGERS = ("counters", "by_source", "cached_tokens", "computed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("MMMU")
    write_mmmu(
        folder / "Agriculture" / "test-0.parquet",
        [[picture((640, 480))], [picture(FULL_HD, seed=1)], [picture(HD, seed=2, file_format="JPEG")]],
    )
    return folder


def measure(
    engine: RunningEngine, folder: Path, tokenizer: Path, tmp_path: Path, name: str, **model: Any
) -> tuple[dict[str, Any], RunDirectory]:
    """Prepare, validate and run as a user does; the analysis and where it all is."""
    document = {
        "run": {"run_id": "vision", "output_dir": "out"},
        "tokenizer": {"path": str(tokenizer)},
        "corpus": {"path": "builtin:word-problems"},
        "requests": {
            "count": COUNT,
            "input_length": {"mode": "fixed", "value": TEXT},
            "output_length": {"mode": "fixed", "value": 4},
        },
        "multimodal": {"mmmu_parquet_dir": str(folder), "scenarios": [name]},
        "service": {
            "inference_url": f"{engine.url}/v1/chat/completions",
            "metrics_url": f"{engine.url}/metrics",
            "reset_url": f"{engine.url}/reset_prefix_cache",
            "model": engine.model,
            "dp_size": engine.ranks,
            "timeout_seconds": 120,
            "poll_interval_seconds": 0.5,
        },
        "driver": {"kind": "native", "concurrency": 4},
        "aisbench": {"model": model},
    }
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(document))
    printed = json.loads(hitlab("prepare", "--scenario", str(path), "--mode", "mm").stdout)
    hitlab("validate", "--manifest", printed["manifest"])
    shown = hitlab("run", "--scenario", str(path)).stdout
    assert "Expected Prefix Cache Hit Rate" in shown
    directory = RunDirectory.of_manifest(Path(printed["manifest"]))
    return json.loads(directory.analysis.read_text()), directory


def assert_as_expected(
    analysis: dict[str, Any], directory: RunDirectory, engine: RunningEngine, image_tokens: int, images: int
) -> None:
    """From the answers themselves: the engine's own tokens say where the text begins, and so what is shared."""
    (run,) = directory.runs.iterdir()
    records = pq.read_table(run / "requests.parquet").to_pylist()
    rows = [
        json.loads(line) for line in next(directory.result.glob("*.requests.jsonl")).read_text().splitlines()
    ]
    ((_, dataset),) = json.loads(directory.manifest.read_text())["datasets"].items()
    sent = rows[0]["prompt"]
    for part in sent[0]["content"]:
        if part["type"] == "image_url":
            part["image_url"] = {"url": dataset["image"]["data_url"]}
    body = {"model": engine.model, "messages": sent}
    ids = requests.post(f"{engine.url}/tokenize", json=body, timeout=60).json()["tokens"]
    before_text = len(ids) - TEXT - TEXT_ENDS_WITH
    shared = before_text // BLOCK * BLOCK
    assert {record["prompt_tokens"] for record in records} == {len(ids)}
    assert {record["image_tokens"] for record in records} == {image_tokens}
    cached = sorted(record["cached_tokens"] for record in records)
    assert cached == [0] * engine.ranks + [shared] * (COUNT - engine.ranks)

    actual, expected = analysis["actual"], analysis["expected"]
    total = (COUNT - engine.ranks) * shared
    assert expected["hit_tokens"] == actual["global_hits"] == total
    assert expected["input_tokens"] == actual["global_queries"] == COUNT * len(ids)
    for name in LEDGERS:
        assert analysis["ledgers"][name]["total"]["hits"] == total, name
        assert analysis["ledgers"][name]["total"]["queries"] == COUNT * len(ids), name
    for rank in actual["by_dp"].values():
        assert rank["hits"] == rank["expected_hits"]
    assert actual["requests"]["differing_requests"] == 0
    assert actual["image_tokens"]["total"] == COUNT * image_tokens
    cache = actual["multimodal_cache"]
    assert cache["queries"] == COUNT * images
    # Each API server looks an image up for itself, and only the one that was asked has been reset.
    assert COUNT * images - engine.ranks <= cache["hits"] < COUNT * images
    assert analysis["warnings"] == []
    light = any(warning["code"] == "CONCURRENCY_NOT_REACHED" for warning in analysis["warnings"])
    assert analysis["validation"]["actual_status"] in ({"PASS", "PASS_WITH_WARNING"} if light else {"PASS"})


def test_llava_to_the_token(
    llava_engine: RunningEngine, folder: Path, qwen_directory: Path, tmp_path: Path
) -> None:
    analysis, directory = measure(llava_engine, folder, qwen_directory, tmp_path, "single_1080p")
    assert_as_expected(analysis, directory, llava_engine, image_tokens=256, images=1)


def test_llava_with_five_images_and_without_a_stream(
    llava_engine: RunningEngine, folder: Path, qwen_directory: Path, tmp_path: Path
) -> None:
    analysis, directory = measure(
        llava_engine, folder, qwen_directory, tmp_path, "multi_720p_5", stream=False
    )
    assert_as_expected(analysis, directory, llava_engine, image_tokens=5 * 256, images=5)
    report = json.loads(hitlab("report", "--manifest", str(directory.manifest), "--json").stdout)
    assert report["metrics"]["TTFT"] is None
    assert "stream: false" in report["unavailable"]["TTFT"]


def test_qwen2_vl_on_two_ranks_to_the_token(
    qwen2_vl_engine: RunningEngine, folder: Path, qwen_directory: Path, tmp_path: Path
) -> None:
    analysis, directory = measure(qwen2_vl_engine, folder, qwen_directory, tmp_path, "single_1080p")
    # 1920 x 1080 shrinks to 896 x 504, 32 x 18 patches of 28.
    assert_as_expected(analysis, directory, qwen2_vl_engine, image_tokens=576, images=1)
    report = json.loads(hitlab("report", "--manifest", str(directory.manifest), "--json").stdout)
    assert report["metrics"]["TTFT"]["N"] == COUNT
