"""Steps that signals do not cut in two."""

import signal
import threading

import pytest

from runner.undisturbed import last_words, undisturbed


@pytest.fixture
def heard():
    numbers = []
    before = {
        number: signal.signal(number, lambda received, _frame: numbers.append(received))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    }
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_wait_and_each_comes_once(heard):
    with undisturbed():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            signal.raise_signal(number)
        assert heard == []
    assert heard == [signal.SIGTERM, signal.SIGINT]


def test_last_words_are_not_cut_and_the_clock_is_stopped(heard):
    signal.setitimer(signal.ITIMER_REAL, 3600)
    with last_words():
        signal.raise_signal(signal.SIGINT)
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert heard == []
    signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGINT]


def test_other_threads_have_no_signals(heard):
    done = []

    def step():
        with undisturbed(), last_words():
            done.append(True)

    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    assert done == [True]
    assert heard == []
