"""`vllm serve` with two ranks: two API server processes, Prometheus in multiprocess mode, 300 blocks a rank.

The order counts: the first test wants an engine that has served nothing yet, the last one kills it.
"""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import requests

from contract.rows import read_rows
from contract.run_directory import MeasurementDirectory, RunDirectory
from contract.scrapes import split_scrapes
from tests.real.conftest import SMALL_POOL_BLOCKS
from tests.real.engine import RunningEngine
from tests.real.job import HITLAB, LEDGERS, assert_equal_to_the_token, hitlab, prepare, run, scenario
from tests.real.parity import cases, compare, facts_of, reset, samples, simulator_for

REQUESTS = 240
SHORT = {"mode": "truncated_normal", "min": 128, "max": 480}
ANSWERS = {"mode": "uniform", "min": 1, "max": 8}


def measurement_of(directory: RunDirectory) -> MeasurementDirectory:
    return MeasurementDirectory(max(directory.runs.iterdir()))


def findings_of(directory: RunDirectory) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(measurement_of(directory).measurement.read_text())["findings"]
    return found


@pytest.fixture(scope="session")
def measured(
    served_engine: RunningEngine, qwen_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunDirectory, dict[str, Any], str]:
    """The first run on this engine; also what its metrics said before any request."""
    fresh = requests.get(f"{served_engine.url}/metrics", timeout=30).text
    path = scenario(
        served_engine,
        qwen_directory,
        tmp_path_factory.mktemp("served"),
        # 24 requests and two prefixes: they fill about a half of each rank's 9,568 tokens.
        requests={"count": 24, "input_length": SHORT, "output_length": ANSWERS},
        prefix_cache={"mode": "warmup", "target_hit_rate": 0.5, "groups": {"count": 2}},
    )
    directory = prepare(path)
    return directory, run(path, directory), fresh


def test_the_main_job_is_exact_behind_two_api_servers(
    measured: tuple[RunDirectory, dict[str, Any], str],
) -> None:
    directory, analysis, fresh = measured
    assert_equal_to_the_token(analysis, directory)
    assert "\nprocess_start_time_seconds" not in fresh
    assert "\nvllm:kv_cache_usage_perc{" not in fresh, "was this engine asked something before?"
    assert findings_of(directory) == []
    assert analysis["warnings"] == []


def test_exported_scrapes_give_the_same_actual(
    measured: tuple[RunDirectory, dict[str, Any], str], tmp_path: Path
) -> None:
    directory, analysis, _ = measured
    for name in ("baseline", "after"):
        text = analysis["runtime"][f"metrics_{name}"]["raw_prometheus"]
        assert len(split_scrapes(text)) == 1, "one page shows both ranks"
        (tmp_path / f"{name}.prom").write_text(text)
    offline = json.loads(
        hitlab(
            "analyze",
            *("--manifest", str(directory.manifest)),
            *("--baseline", str(tmp_path / "baseline.prom")),
            *("--after", str(tmp_path / "after.prom")),
        ).stdout
    )
    assert offline["status"] == "analyzed"
    for name in ("global_queries", "global_hits", "global_hit_rate"):
        assert offline["actual"][name] == analysis["actual"][name]
    for rank, counted in analysis["actual"]["by_dp"].items():
        for name in ("queries", "hits"):
            assert offline["actual"]["by_dp"][rank][name] == counted[name]
    assert json.loads(directory.analysis.read_text()) == analysis, "an offline pair displaces nothing"


def test_a_second_run_without_reset_is_recognised_as_contaminated(
    served_engine: RunningEngine, qwen_directory: Path, tmp_path: Path
) -> None:
    reset(served_engine.url)
    path = scenario(
        served_engine,
        qwen_directory,
        tmp_path,
        requests={"count": 16, "input_length": SHORT, "output_length": ANSWERS},
        prefix_cache={"mode": "cold", "target_hit_rate": 0.4, "groups": {"count": 2}},
        # Four lanes reach no more, and not even that while some have run out.
        driver={"kind": "native", "concurrency": 1},
    )
    document = json.loads(path.read_text())
    document["service"] |= {"reset_url": None, "assume_empty_cache": True}
    path.write_text(json.dumps(document))
    directory = prepare(path)

    first = run(path, directory)
    assert first["agreement"]["hits_equal"] is True
    assert [finding["code"] for finding in findings_of(directory)] == ["ASSUME_EMPTY_CACHE"]

    second = run(path, directory)
    assert second["actual"]["global_hits"] > first["actual"]["global_hits"], "the engine itself says so"
    codes = [finding["code"] for finding in findings_of(directory)]
    assert "CONTAMINATED" in codes
    assert {"ASSUME_EMPTY_CACHE", "CONTAMINATED"} <= {warning["code"] for warning in second["warnings"]}
    assert all(
        finding["tokens"] > 0 for finding in findings_of(directory) if finding["code"] == "CONTAMINATED"
    )


def test_what_the_pool_cannot_hold_is_predicted_to_the_token(
    served_engine: RunningEngine, qwen_directory: Path, tmp_path: Path
) -> None:
    path = scenario(
        served_engine,
        qwen_directory,
        tmp_path,
        requests={
            "count": 80,
            "input_length": {"mode": "truncated_normal", "min": 400, "max": 1500},
            "output_length": {"mode": "uniform", "min": 1, "max": 40},
        },
        prefix_cache={
            "mode": "cold",
            "target_hit_rate": 0.5,
            "groups": {"count": 10},
            "order": {"strategy": "global_shuffle"},
        },
        # What is evicted beside running requests is a matter of timing; alone it is not.
        driver={"kind": "native", "concurrency": 1},
    )
    directory = prepare(path)
    analysis = run(path, directory)
    theory = sum(row["theoretical_hit_tokens"] for row in read_rows(directory.full))
    actual = analysis["actual"]["global_hits"]
    print(
        f"[eviction] theory {theory}, predicted {analysis['prediction']['hit_tokens']}, actual {actual} hit tokens"
    )
    assert 0 < actual < 0.9 * theory, "the pool must be what decides"
    assert {name: analysis["ledgers"][name]["total"]["hits"] for name in LEDGERS} == dict.fromkeys(
        LEDGERS, actual
    )
    assert analysis["prediction"]["requests"] == {
        "predicted": 80,
        "compared": 80,
        "equal": 80,
        "differing": [],
    }
    assert analysis["prediction"]["model"]["blocks_per_rank"] == {
        "0": SMALL_POOL_BLOCKS,
        "1": SMALL_POOL_BLOCKS,
    }
    assert [cause["tokens"] for cause in analysis["prediction"]["theory"]["causes"]] == [actual - theory]
    assert [finding["code"] for finding in findings_of(directory)] == ["KV_CAPACITY"]


def test_the_simulator_evicts_what_the_engine_evicts(served_engine: RunningEngine) -> None:
    facts = facts_of(served_engine)
    assert facts.blocks_per_rank == SMALL_POOL_BLOCKS, "the override is each rank's own"
    made = cases(facts, seed=20261129, count=REQUESTS, deep=True)
    with simulator_for(facts, served_engine.model_directory) as simulator:
        compared = compare(facts.url, simulator.url, made)
        with simulator_for(facts, served_engine.model_directory, blocks_per_rank=1 << 16) as roomy:
            unlimited = compare(roomy.url, simulator.url, made)
    print(f"[parity] {compared}; a pool without limit would have hit {unlimited.hits} tokens")
    assert not compared.differing, f"{compared}:\n" + "\n".join(compared.differing)
    assert 20_000 < compared.hits < 0.8 * unlimited.hits, "the pool must be what decides"


def answered_requests(engine: RunningEngine) -> float:
    """Requests that this engine has answered so far, on all ranks."""
    finished = "vllm:request_success_total"
    return sum(float(sample.value) for sample in samples(engine.url) if sample.name == finished)


def in_formal_phase(directory: RunDirectory) -> bool:
    if not directory.runs.exists():
        return False
    events = measurement_of(directory).events
    return events.exists() and any(
        event["event"] == "phase_started" and event["phase"] == "formal"
        for event in map(json.loads, events.read_text().splitlines())
    )


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    """Wait for a condition while the process runs, at most a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.last
def test_an_engine_that_dies_in_the_middle_leaves_a_partial_measurement(
    served_engine: RunningEngine, qwen_directory: Path, tmp_path: Path
) -> None:
    path = scenario(
        served_engine,
        qwen_directory,
        tmp_path,
        requests={
            "count": 200,
            "input_length": SHORT,
            "output_length": {"mode": "uniform", "min": 20, "max": 60},
        },
        prefix_cache={"mode": "warmup", "target_hit_rate": 0.5, "groups": {"count": 2}},
    )
    directory = prepare(path)
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen([HITLAB, "run", "--scenario", path], stdout=subprocess.PIPE, stderr=stderr)
    try:
        wait_until(lambda: in_formal_phase(directory), process)
        answered = answered_requests(served_engine)
        wait_until(lambda: answered_requests(served_engine) > answered + 25, process)
        served_engine.kill()
        killed = time.monotonic()
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.communicate()
    assert time.monotonic() - killed < 45
    said = (tmp_path / "stderr").read_text()
    assert "Traceback" not in said
    measurement = measurement_of(directory)
    document = json.loads(measurement.measurement.read_text())
    assert document["status"] in ("partial", "failed")
    records = pq.read_table(measurement.requests).to_pylist()
    assert len(records) == len({record["request_id"] for record in records}) == 200
    finished = [record for record in records if record["error_kind"] is None]
    failed = [record for record in records if record["error_kind"] is not None]
    print(f"[killed] {len(finished)} finished, {len(failed)} failed: {said.splitlines()[-1]}")
    # What the engine had counted, less what it had not handed out yet: one request for each in flight.
    assert len(finished) > 25 - 8
    assert len(failed) > 8, "the rest must not wait for an engine that is gone"
    assert {record["error_kind"] for record in failed} <= {"connect", "reset", "stream_error"}
