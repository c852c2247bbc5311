"""Logs of commands: phases with their times, lists that stay short."""

import re
from pathlib import Path

from contract.command_log import SHOWN, PhaseTimes, bounded, command_log
from contract.redaction import Redactor


def test_phases_are_told_with_their_times_also_those_before_the_log(tmp_path: Path) -> None:
    phase = PhaseTimes()
    with phase("plan"):
        pass
    with command_log(tmp_path / "x.log", Redactor()) as log:
        phase.tell(log)
        with phase("write"):
            log.info("in between")
    lines = [line.split(" INFO ")[1] for line in (tmp_path / "x.log").read_text().splitlines()]
    assert [re.sub(r"\d+\.\d{3} s$", "T", line) for line in lines] == [
        "phase plan: T",
        "in between",
        "phase write: T",
    ]


def test_a_long_list_is_cut_and_says_so() -> None:
    assert list(bounded(map(str, range(SHOWN)), "there")) == [str(number) for number in range(SHOWN)]
    shown = list(bounded(map(str, range(SHOWN + 7)), "the manifest has them all"))
    assert shown[SHOWN:] == ["... and 7 more: the manifest has them all"]
