"""An engine is a target of Prometheus while its run goes on."""

import json
from pathlib import Path

import pytest

from contract.run_directory import MeasurementDirectory, RunDirectory
from runner.engines.engine import Engine
from runner.prometheus_target import published


def engine(kind: str) -> Engine:
    return Engine(
        kind, "http://127.0.0.1:8000/v1/completions", ("http://127.0.0.1:8000/metrics",), None, "m", 1
    )


def run(tmp_path: Path) -> tuple[RunDirectory, MeasurementDirectory]:
    directory = RunDirectory(tmp_path / "job_20260101_000000", "job_20260101_000000")
    directory.root.mkdir()
    return directory, MeasurementDirectory(directory.runs / "20260101_000001")


@pytest.mark.parametrize(("kind", "stays"), [("simulator", False), ("external", True)])
def test_the_target_is_there_during_the_run(tmp_path: Path, kind: str, stays: bool) -> None:
    folder = tmp_path / ".prometheus" / "targets"
    with published(engine(kind), *run(tmp_path)) as unseen:
        assert unseen is None
        (path,) = folder.iterdir()
        (group,) = json.loads(path.read_text())
        assert group["targets"] == ["127.0.0.1:8000"]
        assert group["labels"]["run_id"] == "job_20260101_000000"
        assert group["labels"]["measurement"] == "20260101_000001"
        assert group["labels"]["engine_kind"] == kind
    assert path.exists() is stays


def test_a_folder_that_takes_no_file_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / ".prometheus").write_text("in the way")
    with published(engine("simulator"), *run(tmp_path)) as unseen:
        assert unseen is None


def test_an_engine_that_prometheus_cannot_reach_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_URL", "http://prometheus:9090")
    with published(engine("external"), *run(tmp_path)) as unseen:
        assert unseen is not None
        assert unseen.code == "PROMETHEUS_CANNOT_REACH"
        assert "127.0.0.1:8000" in unseen.message
