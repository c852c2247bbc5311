"""Ending on SIGINT and SIGTERM: first by asking, then by KeyboardInterrupt."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec

from contract.errors import Interruption

P = ParamSpec("P")

GRACE_SECONDS = 0.5


def end_on_sigterm() -> None:
    """SIGTERM ends a command as Ctrl-C does: files in the making are removed, and the exit code is 130."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


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

    def ask(number: int, _frame: object) -> None:
        if stop.is_set():
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        stop.set()
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)

    handlers = {signal.SIGINT: ask, signal.SIGTERM: ask, signal.SIGALRM: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
