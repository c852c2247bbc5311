"""Waiting, with a limit, until an engine is idle and its counters have caught up (design, section 5)."""

import threading
import time
from dataclasses import dataclass

from contract.errors import NotThisEngineError
from contract.measurement import Finding
from enginemetrics.difference import subtract
from enginemetrics.settling import is_idle, same_counters, settling
from runner.control import ControlClient, Scrape

POLL_SECONDS = 0.2
LIMIT_SECONDS = 30.0


@dataclass(frozen=True)
class Settled:
    """The last scrape, whether it can be relied on, and why not."""

    scrape: Scrape
    settled: bool
    finding: Finding | None


class _Turns:
    """Pages read one after another. An engine that restarts falls once; pages of several engines in turn fall again."""

    def __init__(self, client: ControlClient) -> None:
        self._urls = ", ".join(client.engine.metrics_urls)
        self._falls = 0

    def follow(self, previous: Scrape | None, current: Scrape) -> None:
        """Raises NotThisEngineError at the second fall."""
        findings = subtract(previous.snapshot, current.snapshot).findings if previous else ()
        self._falls += bool(findings)
        if self._falls > 1:
            raise NotThisEngineError(
                f"{self._urls}: its counters rise and fall while it is read ({findings[0].seen}); several engines answer "
                "here in turn, so name the page of every engine, or send to one engine"
            )


def quiet_scrape(
    client: ControlClient, stop: threading.Event, limit_seconds: float = LIMIT_SECONDS
) -> Settled:
    """Wait for an idle engine and two equal scrapes: the state from which differences are taken.

    Raises NotThisEngineError when several engines' pages come in turn.
    """
    begun = time.monotonic()
    turns = _Turns(client)
    previous: Scrape | None = None
    while True:
        current = client.scrape()
        turns.follow(previous, current)
        idle = is_idle(current.snapshot)
        if idle is not False and previous and same_counters(previous.snapshot, current.snapshot):
            return Settled(current, True, None)
        waited = time.monotonic() - begun
        if waited > limit_seconds or stop.is_set():
            message = _not_idle(idle, waited, stopped=stop.is_set())
            return Settled(current, False, Finding(code="ENGINE_NOT_IDLE", message=message))
        previous = current
        stop.wait(POLL_SECONDS)


def _not_idle(idle: bool | None, waited_seconds: float, *, stopped: bool) -> str:
    """What was seen when the wait ended. Who stops it early has seen nobody else's requests for long."""
    seen = "requests are running or waiting" if idle is False else "counters keep changing"
    if stopped:
        return f"stopped after {waited_seconds:.1f} s of waiting for an idle engine ({seen})"
    return f"the engine is not idle after {waited_seconds:.0f} s ({seen}); another client is using it"


def settled_scrape(
    client: ControlClient,
    baseline: Scrape,
    expected_queries: int | None,
    stop: threading.Event,
    limit_seconds: float = LIMIT_SECONDS,
) -> Settled:
    """Wait until the counters show exactly the tokens that were answered, then for two equal scrapes.

    Raises NotThisEngineError when several engines' pages come in turn.

    When that never happens the last scrape is returned with the finding that says what stands against it. With
    `expected_queries` None (a request failed, its tokens are not known) only two equal scrapes are waited for.
    """
    deadline = time.monotonic() + limit_seconds
    turns = _Turns(client)
    previous: Scrape | None = None
    while True:
        current = client.scrape()
        turns.follow(previous, current)
        state = settling(
            baseline.snapshot,
            previous.snapshot if previous else None,
            current.snapshot,
            expected_queries=expected_queries,
        )
        if state.settled:
            return Settled(current, True, None)
        too_much = state.missing is not None and state.missing < 0
        unchanged = previous is not None and same_counters(previous.snapshot, current.snapshot)
        broken = bool(subtract(baseline.snapshot, current.snapshot).findings)
        hopeless = unchanged and (too_much or broken)  # waiting mends neither
        waiting = stop.is_set() and not hopeless
        if hopeless or waiting or time.monotonic() > deadline:
            code = "FOREIGN_TRAFFIC" if state.foreign else "COUNTERS_NOT_SETTLED"
            tokens = abs(state.missing) if state.missing is not None else None
            reason = f"stopped before the counters stood still: {state.reason}" if waiting else state.reason
            return Settled(current, False, Finding(code=code, message=reason, tokens=tokens))
        previous = current
        stop.wait(POLL_SECONDS)
