from typing import Any

import pytest

from contract.scenario import parse_scenario
from contract.scenario.aisbench_arguments import command_line, forwarded, refusals, warmups
from contract.scenario.problems import ScenarioProblems


@pytest.mark.parametrize(
    ("extra_args", "words"),
    [
        ({}, []),
        ({"--num-warmups": 0}, ["--num-warmups", "0"]),
        ({"--debug": True, "--dump-eval-details": False}, ["--debug"]),
        ({"--x": ["a", 1, 0.5]}, ["--x", "a", "1", "0.5"]),
        (["--num-warmups", "0"], ["--num-warmups", "0"]),
    ],
)
def test_both_shapes(extra_args: Any, words: list[str]) -> None:
    assert command_line(extra_args) == words


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-r"], "earlier run"),
        (["-r20260101_000000"], "earlier run"),
        (["--reuse=latest"], "earlier run"),
        (["--reu", "latest"], "earlier run"),
        (["--num-prompts", "5"], "planned hit rate"),
        (["--num-p=5"], "planned hit rate"),
        (["--num", "5"], "planned hit rate"),
        (["--mode", "all"], "only perf"),
        (["-m", "infer"], "only perf"),
        (["-minfer"], "only perf"),
        (["--mode"], "only perf"),
        (["--merge-ds"], "order"),
        (["--pressure"], "over and over"),
        (["--pressure-time", "3"], "over and over"),
        (["--custom-dataset-path", "x"], "prepared"),
        (["-w", "out"], "aisbench.work_dir"),
        (["-s"], "nothing would be sent"),
        (["--dry"], "nothing would be sent"),
        (["other.py"], "belongs to no option"),
        (["--num-warmups"], "one number"),
        (["--num-warmups", "-1"], "one number"),
        (["--num-warmups", "few"], "one number"),
    ],
)
def test_what_would_spoil_the_measurement_is_refused_with_the_reason(words: list[str], reason: str) -> None:
    (told,) = refusals(words)
    assert reason in told
    with pytest.raises(ScenarioProblems, match=r"aisbench\.extra_args") as problems:
        parse_scenario({"aisbench": {"extra_args": words}})
    assert reason in str(problems.value)


@pytest.mark.parametrize(
    "words",
    [
        ["--mode", "perf", "--debug"],
        ["-mperf"],
        ["--max-num-workers", "2", "--config-dir", "configs"],
        ["--spec-decode"],
        [],
    ],
)
def test_the_rest_is_not(words: list[str]) -> None:
    assert list(refusals(words)) == []


def test_mode_and_warmups_are_seen_to_by_hitlab() -> None:
    words = ["--debug", "--mode", "perf", "--num-warmups", "3", "--max-num-workers", "2"]
    assert warmups(words) == 3
    assert warmups([]) == 0
    assert forwarded(words) == ["--debug", "--max-num-workers", "2"]


def test_requests_are_sent_once() -> None:
    with pytest.raises(ScenarioProblems, match=r"num_return_sequences: found 2"):
        parse_scenario({"aisbench": {"model": {"generation_kwargs": {"num_return_sequences": 2}}}})


@pytest.mark.parametrize(
    ("document", "kind", "retries"),
    [
        ({}, "native", 0),
        ({"aisbench": {}}, "aisbench", 2),
        ({"aisbench": {"model": {"retry": 0}}}, "aisbench", 0),
        ({"aisbench": {}, "driver": {"kind": "native"}}, "native", 0),
        ({"driver": {"kind": "aisbench", "retries": 5}}, "aisbench", 5),
        ({"aisbench": {"model": {"retry": 7}}, "driver": {"retries": 1}}, "aisbench", 1),
    ],
)
def test_which_driver_and_how_many_retries(document: dict[str, Any], kind: str, retries: int) -> None:
    scenario = parse_scenario(document)
    assert (scenario.driver_kind, scenario.retries) == (kind, retries)
