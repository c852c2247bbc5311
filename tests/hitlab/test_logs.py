"""The log of a run that ends early, and of one with warnings: what was found before and why it ended."""

import re

import pytest

from simulator.config import SimulatorConfig
from simulator.process import start_simulator
from tests.hitlab.conftest import BLOCK_SIZE, Hitlab, WriteScenario, prepared


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzer.analyze.write_report", lambda *_, **__: None)


def test_a_failed_check_stands_behind_those_that_passed(
    hitlab: Hitlab, write_scenario: WriteScenario
) -> None:
    with start_simulator(SimulatorConfig(block_size=2 * BLOCK_SIZE)) as simulator:
        path = write_scenario(simulator.url)
        directory = prepared(hitlab, path)
        assert hitlab("run", "--scenario", path).code == 4
    text = directory.log("run").read_text()
    checks = re.findall(r"INFO check (\w+): (\w+): .", text)
    assert checks[-1] == ("block_size", "failed")
    assert {status for _, status in checks[:-1]} == {"ok"}
    assert "tokenizer.block_size is 16, the engine's is 32" in text
    assert re.search(r"INFO measurement failed: .*block_size", text)


def test_warnings_of_the_run_and_of_its_analysis(hitlab: Hitlab, write_scenario: WriteScenario) -> None:
    with start_simulator(SimulatorConfig(block_size=BLOCK_SIZE, dev_mode=False)) as simulator:
        path = write_scenario(simulator.url, service={"assume_empty_cache": True})
        directory = prepared(hitlab, path)
        assert hitlab("run", "--scenario", path).code == 0
    assert "WARNING ASSUME_EMPTY_CACHE: " in directory.log("run").read_text()
    analysed = directory.log("analyze").read_text()
    assert "INFO warning ASSUME_EMPTY_CACHE: " in analysed
    assert "validation PASS_WITH_WARNING, actual PASS_WITH_WARNING" in analysed
