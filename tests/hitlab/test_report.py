"""`hitlab report` as a user runs it, after runs on the simulator."""

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from contract.run_directory import MeasurementDirectory, RunDirectory
from tests.analyzer.synthetic import edit_measurement
from tests.hitlab.conftest import Hitlab, WriteScenario, prepared

ROWS = [
    "E2EL", "TTFT", "TPOT", "ITL", "InputTokens", "OutputTokens", "OutputTokenThroughput", "PrefillTokenThroughput",
]  # fmt: skip


@pytest.fixture
def directory(hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario) -> RunDirectory:
    path = write_scenario(engine_url)
    made = prepared(hitlab, path)
    assert hitlab("run", "--scenario", path).code == 0
    return made


def records_of(directory: RunDirectory, stamp: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(
        MeasurementDirectory(directory.runs / stamp).requests
    ).to_pylist()
    return rows


def test_json_files_and_table_say_the_same(
    hitlab: Hitlab, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = hitlab("report", "--manifest", directory.manifest)
    assert (ended.code, ended.err) == (0, "")
    report = json.loads(ended.out)
    assert {"csv", "json", "metrics", "common"} <= set(report)
    (stamp,) = (path.name for path in directory.runs.iterdir())
    assert (report["measurement"], report["status"]) == (stamp, "complete")
    records = records_of(directory, stamp)
    assert list(report["metrics"]) == ROWS
    assert report["metrics"]["E2EL"]["Average"] == pytest.approx(
        statistics.fmean(record["e2el_s"] for record in records) * 1e3
    )
    # On a busy machine an answer may arrive in one read: its tokens have no times of their own.
    timed = [record for record in records if any(record["itl_s"])]
    assert report["untimed"] == sum(record["completion_tokens"] > 1 for record in records) - len(timed)
    gaps = [gap * 1e3 for record in timed for gap in record["itl_s"]]
    assert report["metrics"]["ITL"]["Median"] == pytest.approx(statistics.median(gaps), rel=1e-5)
    assert report["metrics"]["ITL"]["N"] == len(gaps)
    assert report["metrics"]["InputTokens"]["N"] == len(records) == 30
    assert report["common"]["Total Requests"] == {"total": 30}
    assert report["common"]["Failed Requests"] == {"total": 0}
    assert report["common"]["Max Concurrency"] == {"total": 8}
    assert report["common"]["Total Input Tokens"]["total"] == sum(r["prompt_tokens"] for r in records)
    assert report["unavailable"] == {}
    assert report["chunks"]["chunks"] == sum(record["chunks"] for record in records)
    rate = report["hit_rate"]
    assert rate["theoretical"] == rate["actual"] == rate["cached_tokens"] > 0
    assert Path(report["csv"]).parent == Path(report["json"]).parent == directory.runs / stamp
    assert json.loads(Path(report["json"]).read_text()) == report["common"]
    with Path(report["csv"]).open() as file:
        assert [row["Performance Parameters"] for row in csv.DictReader(file)] == ROWS

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    table = hitlab("report", "--manifest", directory.manifest).out
    assert table.startswith(f"Performance of measurement {stamp} (complete) of task [{directory.run_id}]:")
    for text in (*ROWS, "Benchmark Duration", "Actual Hit Rate", "chunks", report["csv"]):
        assert text in table
    assert json.loads(hitlab("report", "--manifest", directory.manifest, "--json").out) == report


def test_the_latest_complete_measurement_or_the_one_named(
    hitlab: Hitlab, directory: RunDirectory, engine_url: str, write_scenario: WriteScenario
) -> None:
    assert hitlab("run", "--scenario", write_scenario(engine_url)).code == 0
    first, second = sorted(path.name for path in directory.runs.iterdir())
    broken = MeasurementDirectory(directory.runs / second)
    edit_measurement(broken, status="partial")
    assert json.loads(hitlab("report", "--manifest", directory.manifest).out)["measurement"] == first
    named = hitlab("report", "--manifest", directory.manifest, "--measurement", second)
    assert json.loads(named.out)["measurement"] == second
    ended = hitlab("report", "--manifest", directory.manifest, "--measurement", "x")
    assert ended.code == 3
    assert f"there: {first}, {second}" in ended.err


def test_without_a_stream_the_times_of_tokens_are_null_and_the_hit_rate_is_there(
    hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_scenario(engine_url, aisbench={"model": {"stream": False}}, driver={"kind": "native"})
    made = prepared(hitlab, path)
    assert hitlab("run", "--scenario", path).code == 0
    report = json.loads(hitlab("report", "--manifest", made.manifest).out)
    for name in ("TTFT", "TPOT", "ITL"):
        assert report["metrics"][name] is None
        assert "stream: false" in report["unavailable"][name]
    assert report["metrics"]["E2EL"]["N"] == 30
    assert report["hit_rate"]["actual"] == report["hit_rate"]["theoretical"] > 0
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "TTFT, TPOT, ITL" in hitlab("report", "--manifest", made.manifest).out


def test_nothing_measured_yet(hitlab: Hitlab, write_scenario: WriteScenario) -> None:
    made = prepared(hitlab, write_scenario("http://127.0.0.1:9"))
    ended = hitlab("report", "--manifest", made.manifest)
    assert (ended.code, ended.out) == (3, "")
    assert "holds no complete measurement; run hitlab run" in ended.err
