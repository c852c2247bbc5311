"""Ending on SIGINT and SIGTERM: first by asking, then by KeyboardInterrupt."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

GRACE_SECONDS = 1.0


def end_on_sigterm() -> None:
    """SIGTERM ends a command as Ctrl-C does: files in the making are removed, and the exit code is 130."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


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
