"""Steps that signals do not cut in two. A signal mask would not do: the kernel gives a signal to any thread, and Python
handles it in the main one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals wait until the block is done: an impatient second Ctrl-C must not leave an engine behind.

    They are caught and sent again afterwards.
    """
    with _caught() as came:
        yield
    for received in dict.fromkeys(came):
        signal.raise_signal(received)


@contextmanager
def last_words() -> Iterator[None]:
    """For what is written down because the user wants the end: further signals want nothing else, and are forgotten.

    The clock of one that was heard before (`signal.setitimer`) is stopped.
    """
    if threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, 0)
    with _caught():
        yield


@contextmanager
def _caught() -> Iterator[list[int]]:
    """The signals that come in the block, in the order of their coming."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came  # signals are the main thread's
        return
    before = {
        number: signal.signal(number, lambda received, _frame: came.append(received)) for number in _SIGNALS
    }
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
