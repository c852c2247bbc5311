"""From checks to an exit code: 0 only when every requested check ran and passed."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from contract.errors import ExitCode

SHOWN_FAILURES = 5


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"
    """Requested, and there was nothing to check or no way to."""
    NOT_REQUESTED = "not requested"


@dataclass(frozen=True)
class Check:
    """One claim about a run. `checked` counts what was looked at, `failed` what was wrong with it."""

    name: str
    status: Status
    checked: int
    failed: int
    detail: str


def check(name: str, *, checked: int, failures: Sequence[str], failed: int | None = None) -> Check:
    """A check that ran over `checked` things; `failures` describes the first of those that are wrong."""
    wrong = len(failures) if failed is None else failed
    if wrong:
        more = f"; and {wrong - SHOWN_FAILURES} more" if wrong > SHOWN_FAILURES else ""
        return Check(name, Status.FAILED, checked, wrong, "; ".join(failures[:SHOWN_FAILURES]) + more)
    if not checked:
        return Check(name, Status.NOT_RUN, 0, 0, "there was nothing to check")
    return Check(name, Status.PASSED, checked, 0, f"{checked} checked")


def not_requested(name: str, reason: str) -> Check:
    return Check(name, Status.NOT_REQUESTED, 0, 0, reason)


@dataclass(frozen=True)
class Verdict:
    exit_code: ExitCode
    line: str


def verdict(checks: Sequence[Check], *, interrupted: bool = False) -> Verdict:
    """Design, section 7: 130 before 1 before 7."""
    failed = [item for item in checks if item.status is Status.FAILED]
    missing = [item for item in checks if item.status is Status.NOT_RUN]
    passed = [item for item in checks if item.status is Status.PASSED]
    if interrupted:
        return Verdict(ExitCode.INTERRUPTED, "INTERRUPTED: the run did not reach its end")
    if failed:
        return Verdict(ExitCode.REQUESTS_FAILED, f"FAILED: {', '.join(item.name for item in failed)}")
    if missing or not passed:
        names = ", ".join(item.name for item in missing) or "no check was requested"
        return Verdict(ExitCode.INCONCLUSIVE, f"NOTHING CHECKED: {names}")
    return Verdict(ExitCode.DONE, f"OK: {', '.join(item.name for item in passed)}")
