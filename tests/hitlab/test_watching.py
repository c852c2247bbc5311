"""A run tells Prometheus of its engine; who watches has no part in the verdict."""

import json

import pytest

from contract.run_directory import MeasurementDirectory
from tests.hitlab.conftest import Hitlab, WriteScenario, prepared


def test_an_engine_that_prometheus_cannot_reach_is_told_and_the_verdict_stays(
    hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_URL", "http://prometheus:9090")
    path = write_scenario(engine_url)
    directory = prepared(hitlab, path)
    assert hitlab("run", "--scenario", path).code == 0
    measurement = MeasurementDirectory(max(directory.runs.iterdir()))
    events = [json.loads(line) for line in measurement.events.read_text().splitlines()]
    assert [event["code"] for event in events if event["event"] == "warning"] == ["PROMETHEUS_CANNOT_REACH"]
    analysis = json.loads(measurement.analysis.read_text())
    assert (analysis["warnings"], analysis["validation"]["status"]) == ([], "PASS")
    (target,) = (directory.root.parent / ".prometheus" / "targets").iterdir()
    (group,) = json.loads(target.read_text())
    assert group["targets"] == [engine_url.removeprefix("http://")]
    assert group["labels"]["measurement"] == measurement.stamp
