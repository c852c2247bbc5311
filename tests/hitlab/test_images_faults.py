"""Runs with images against an engine that misbehaves, and what is said of it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.run_directory import MeasurementDirectory, RunDirectory
from prompts.tokenizer import Tokenizer
from simulator.config import SimulatorConfig
from tests.balancer import balancer, round_robin
from tests.hitlab.conftest import Ended, Hitlab, WriteScenario, document, errors
from tests.hitlab.test_images_job import BLOCK, service
from tests.hitlab.test_silent_counters import nothing
from tests.misbehaving_server import METRICS, RESET, MisbehavingServer, answers, metrics, misbehaving_server
from tests.mmmu import HD, picture, write_mmmu

CONFIG = SimulatorConfig(multimodal=True, block_size=BLOCK, blocks_per_rank=4096)
RunImages = Callable[[str], tuple[Ended, dict[str, Any]]]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.counting.STILL_SECONDS", 0.1)


@pytest.fixture
def server(tokenizer: Tokenizer) -> Iterator[MisbehavingServer]:
    with misbehaving_server(CONFIG, tokenizer) as running:
        yield running


@pytest.fixture
def run_images(hitlab: Hitlab, write_scenario: WriteScenario, tmp_path: Path) -> RunImages:
    """Runs images against an address; returns how it ended, and the measurement."""
    folder = tmp_path / "MMMU"
    folder.mkdir()
    write_mmmu(folder / "test-0.parquet", [[picture(HD)]])

    def run(url: str) -> tuple[Ended, dict[str, Any]]:
        path = write_scenario(
            url,
            requests={
                "count": 8,
                "input_length": {"mode": "fixed", "value": 30},
                "output_length": {"mode": "fixed", "value": 2},
            },
            multimodal={"mmmu_parquet_dir": str(folder), "scenarios": ["multi_720p_5"]},
            service=service(url),
            driver={"kind": "native", "concurrency": 2},
        )
        if not list(tmp_path.glob("out_*")):
            assert hitlab("prepare", "--scenario", path, "--mode", "mm").code == 0
        ended = hitlab("run", "--scenario", path)
        (manifest,) = tmp_path.glob("out_*/result/*.manifest.json")
        directory = RunDirectory.of_manifest(manifest)
        return ended, document(MeasurementDirectory(max(directory.runs.iterdir())).measurement)

    return run


def test_what_a_refused_attempt_left_in_the_cache_is_no_other_unit(
    run_images: RunImages, server: MisbehavingServer
) -> None:
    server.instead[RESET] = answers(500, b'{"error":"no"}')
    ended, told = run_images(server.url)
    assert ended.code == 4
    assert {check["name"]: check["status"] for check in told["preflight"]}["shared_0"] == "ok"
    del server.instead[RESET]
    ended, told = run_images(server.url)
    assert ended.code == 0, ended.err
    statuses = {check["name"]: check["status"] for check in told["preflight"]}
    assert statuses["shared_0"] == statuses["shared_1"] == "ok", (
        "the texts of the first attempt are still cached"
    )
    assert statuses["reset"] == "ok"
    assert told["findings"] == []


def test_counters_that_stand_still_leave_the_answers(
    run_images: RunImages, server: MisbehavingServer
) -> None:
    server.instead[METRICS] = metrics(nothing)
    ended, told = run_images(server.url)
    assert ended.code == 7, ended.err
    (error,) = errors(ended)
    assert "they show 0 queries" in error
    statuses = {check["name"]: check["status"] for check in told["preflight"]}
    assert statuses["counters"] == "not_checked"
    assert statuses["rank_0"] == statuses["shared_0"] == "ok", "by what the answers tell"
    assert told["status"] == "complete"


def test_behind_a_balancer_the_run_is_refused(
    run_images: RunImages, server: MisbehavingServer, tokenizer: Tokenizer
) -> None:
    with (
        misbehaving_server(CONFIG, tokenizer) as second,
        balancer([server.url, second.url], round_robin()) as balanced,
    ):
        ended, told = run_images(balanced.url)
    assert ended.code == 4
    (error,) = errors(ended)
    assert error.startswith("ERROR: METRICS_NOT_THIS_ENGINE: ")
    assert [finding["code"] for finding in told["findings"]] == ["METRICS_NOT_THIS_ENGINE"]
