"""Whether Grafana can be asked, and when to ask again. Needs no Grafana client."""

from contract.errors import ServiceError

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0


class GrafanaUnavailableError(ServiceError):
    """Grafana did not do what was asked, and may do so later. `str()` is one line.

    Attributes:
        retry_after_seconds: how long Grafana asks to be left alone.
        uncertain: whether it may have done it all the same: the answer was lost, not the question.
    """

    def __init__(
        self, message: str, *, retry_after_seconds: float | None = None, uncertain: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.uncertain = uncertain


class GrafanaRefusedError(Exception):
    """Grafana will never take this request: it says that the request itself is wrong."""


class Backoff:
    """When to try again: after 1, 2, 4 ... 60 s, or when the other side says."""

    def __init__(self) -> None:
        self._failures = 0
        self._next = 0.0

    def ready(self, now: float) -> bool:
        return now >= self._next

    def failed(self, now: float, asked_for: float | None = None) -> float:
        """The pause in seconds."""
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures, 16), LONGEST_PAUSE_SECONDS)
        pause = max(pause, asked_for or 0.0)
        self._failures += 1
        self._next = now + pause
        return pause

    def succeeded(self) -> None:
        self._failures = 0
        self._next = 0.0
