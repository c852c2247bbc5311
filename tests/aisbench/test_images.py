"""Images sent by AISBench: the same requests as the native driver's, the same result to the token."""

import csv
from pathlib import Path
from typing import Any

import pytest

from simulator.config import SimulatorConfig
from simulator.process import start_simulator
from tests.aisbench.conftest import MakeJob
from tests.aisbench.scenarios import records, service
from tests.mmmu import HD, picture, write_mmmu

COUNT = 20


def document(url: str, folder: Path, **model: Any) -> dict[str, Any]:
    chat = {"inference_url": f"{url}/v1/chat/completions"}
    return {
        "run": {"run_id": "images", "output_dir": "./outputs/images"},
        "tokenizer": {"path": "builtin:demo"},
        "corpus": {"path": "builtin:word-problems"},
        "requests": {
            "count": COUNT,
            "input_length": {"mode": "fixed", "value": 30},
            "output_length": {"mode": "fixed", "value": 4},
        },
        "multimodal": {"mmmu_parquet_dir": str(folder), "scenarios": ["multi_720p_5"]},
        "service": service(url, "demo", **chat),
        "aisbench": {"model": {"batch_size": 4, **model}, "extra_args": {"--num-warmups": 2}},
    }


@pytest.mark.parametrize("stream", [True, False])
def test_both_drivers_find_the_same(make_job: MakeJob, tmp_path: Path, stream: bool) -> None:
    folder = tmp_path / "MMMU"
    write_mmmu(folder / "test-0.parquet", [[picture(HD)]])
    with start_simulator(SimulatorConfig(multimodal=True, block_size=16)) as engine:
        job = make_job(document(engine.url, folder, stream=stream), mode="mm")
        runs = {driver: job.run("--driver", driver) for driver in ("aisbench", "native")}
    for run in runs.values():
        assert run.code == 0, run.err
        analysis = run.analysis
        assert analysis["expected"]["hit_tokens"] == analysis["actual"]["global_hits"] > 0
        assert analysis["actual"]["requests"]["differing_requests"] == 0
        assert analysis["actual"]["multimodal_cache"]["queries"] == 5 * COUNT
    sent, expected = ([*records(runs[driver].measured)] for driver in ("aisbench", "native"))
    for name in (
        "position",
        "request_id",
        "group",
        "prompt_tokens",
        "image_tokens",
        "completion_tokens",
        "chunks",
    ):
        assert sorted(row[name] for row in sent) == sorted(row[name] for row in expected), name
    assert sorted(row["cached_tokens"] for row in sent) == sorted(row["cached_tokens"] for row in expected)
    assert all((row["ttft_s"] is not None) == stream for row in sent)
    written = runs["aisbench"].measurement["aisbench"]
    assert written["failed_requests"] == 0
    with (runs["aisbench"].measured.root / written["csv"]).open(newline="") as file:
        table = {row["Performance Parameters"]: row for row in csv.DictReader(file)}
    assert float(table["InputTokens"]["Average"]) == sent[0]["prompt_tokens"]
