"""Ending on SIGINT and SIGTERM: first by asking, then by KeyboardInterrupt, and once for all signals of one wish."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from math import inf
from typing import ParamSpec

from contract.errors import Interruption

P = ParamSpec("P")

GRACE_SECONDS = 0.5
BURST_SECONDS = 0.25
"""Signals so soon after one that asked are the same wish: a key that is held, a group that gets one from two sides."""
DEAF_SECONDS = 5.0
"""After a KeyboardInterrupt the command ends itself. Another one in between would leave that half done."""


@dataclass
class _Heard:
    """When, by the monotonic clock, a stop was asked for and KeyboardInterrupt was raised."""

    asked: float = -inf
    raised: float = -inf


_heard = _Heard()


def end_on_signals() -> None:
    """SIGTERM ends a command as Ctrl-C does: files in the making are removed, and the exit code is 130."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def hear_no_more() -> None:
    """The interrupted command says its last line and ends with its own code. The interpreter, which takes its handlers
    away before its last steps, would die of a signal that came then."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(_number: int, _frame: object) -> None:
    now = time.monotonic()
    if now - _heard.asked < BURST_SECONDS or now - _heard.raised < DEAF_SECONDS:
        return
    _raise(now)


def _raise(now: float) -> None:
    _heard.raised = now
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise KeyboardInterrupt


def interruptible(command: Callable[P, int | None]) -> Callable[P, int | None]:
    """A command that tells of KeyboardInterrupt with its line; typer would only return an exit code."""

    @wraps(command)
    def run(*arguments: P.args, **options: P.kwargs) -> int | None:
        try:
            return command(*arguments, **options)
        except KeyboardInterrupt as error:
            raise Interruption("interrupted") from error

    return run


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set.

    What does not look at it in time, say a call that an engine leaves without an answer, is ended by KeyboardInterrupt
    after GRACE_SECONDS; a second SIGINT does so at once. To be used in the main thread.
    """
    stop = threading.Event()

    def ask(number: int, frame: object) -> None:
        if stop.is_set():
            if number == signal.SIGINT:
                _interrupt(number, frame)
            return
        stop.set()
        _heard.asked = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)

    def too_late(_number: int, _frame: object) -> None:
        now = time.monotonic()
        if now - _heard.raised >= DEAF_SECONDS:
            _raise(now)

    handlers = {signal.SIGINT: ask, signal.SIGTERM: ask, signal.SIGALRM: too_late}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
