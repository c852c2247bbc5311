"""Does the bench notice? Every fault has to turn the verdict red, and no fault has to leave it green."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from contract.errors import ExitCode
from tiers.sections import render
from tiers.verdict import Verdict

CONTROL = "no fault"


@dataclass(frozen=True)
class Trial:
    fault: str
    what: str
    verdict: Verdict

    @property
    def as_it_should(self) -> bool:
        wanted = ExitCode.DONE if self.fault == CONTROL else ExitCode.REQUESTS_FAILED
        return self.verdict.exit_code is wanted


def self_test(
    faults: Mapping[str, str], run: Callable[[str | None], Verdict], say: Callable[[str], None]
) -> tuple[Trial, ...]:
    """One run without and one with each of `faults`; `run` makes it (None: no fault)."""
    trials = []
    for fault, what in ((CONTROL, "the bench as it is"), *faults.items()):
        say(f"[self-test] {fault}: {what}")
        trials.append(Trial(fault, what, run(None if fault == CONTROL else fault)))
    return tuple(trials)


def exit_code(trials: tuple[Trial, ...]) -> ExitCode:
    return ExitCode.DONE if all(trial.as_it_should for trial in trials) else ExitCode.REQUESTS_FAILED


def summary(trials: tuple[Trial, ...]) -> str:
    rows = {
        trial.fault: ("as it should be: " if trial.as_it_should else "NOT NOTICED: ") + trial.verdict.line
        for trial in trials
    }
    good = sum(trial.as_it_should for trial in trials)
    return render(
        "Self-Test", [("Faults", rows), ("Result", {"As they should be": f"{good} of {len(trials)}"})]
    )


def document(trials: tuple[Trial, ...]) -> dict[str, object]:
    return {
        "title": "Self-Test",
        "kind": "self-test",
        "trials": [
            {
                "fault": trial.fault,
                "what": trial.what,
                "exit_code": int(trial.verdict.exit_code),
                "line": trial.verdict.line,
                "as_it_should": trial.as_it_should,
            }
            for trial in trials
        ],
        "verdict": {"exit_code": int(exit_code(trials))},
    }
