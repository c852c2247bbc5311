"""The errors a user can meet, each with the exit code that a script can rely on.

One family, so that the command line needs one handler. A message is one line: what is wrong, where, and what to
do. Anything raised that is not a `HitLabError` is a fault of ours and ends with exit code 70.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command (design, section 7)."""

    DONE = 0
    REQUESTS_FAILED = 1
    USAGE = 2
    ARTIFACTS = 3
    SERVICE = 4
    DRIVER = 5
    GATE = 6
    INCONCLUSIVE = 7
    FAULT = 70
    INTERRUPTED = 130


_GRAVEST_FIRST = (
    ExitCode.INTERRUPTED,
    ExitCode.FAULT,
    ExitCode.DRIVER,
    ExitCode.SERVICE,
    ExitCode.ARTIFACTS,
    ExitCode.USAGE,
    ExitCode.REQUESTS_FAILED,
    ExitCode.INCONCLUSIVE,
    ExitCode.GATE,
    ExitCode.DONE,
)


def gravest(*codes: ExitCode) -> ExitCode:
    """The code to end with where several apply (design, section 7); DONE when there is none."""
    return min(codes, key=_GRAVEST_FIRST.index, default=ExitCode.DONE)


class HitLabError(Exception):
    """A problem that the user can act on. `str(error)` is the line to show."""

    exit_code: ExitCode = ExitCode.FAULT


class ScenarioError(HitLabError):
    """The scenario, or a file or option it names, is not usable."""

    exit_code = ExitCode.USAGE


class ArtifactError(HitLabError):
    """Artifacts are damaged, missing, or do not belong together."""

    exit_code = ExitCode.ARTIFACTS


class ServiceError(HitLabError):
    """The engine is unreachable, busy, or lacks what the run needs."""

    exit_code = ExitCode.SERVICE


class UnusablePageError(ServiceError):
    """A metrics page is not as its format wants it, or contradicts itself: what it counts cannot be known from it."""


class NotThisEngineError(ServiceError):
    """A metrics page is not, or not only, that of the engine that answers the requests. `reason` is without the code."""

    code = "METRICS_NOT_THIS_ENGINE"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{self.code}: {reason}")


class Interruption(HitLabError):  # noqa: N818 - a way to end, not an error
    """The user ended the command."""

    exit_code = ExitCode.INTERRUPTED


class NothingMeasuredError(HitLabError):
    """A measurement ended before its load, so there is nothing to analyse; every command on it ends as it did."""

    def __init__(self, message: str, ending: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = ending


class DriverError(HitLabError):
    """The load generator itself failed (not single requests)."""

    exit_code = ExitCode.DRIVER
