"""A signal to docker/bench, its group or the `make` above it: what it started ends, what was measured is shown."""

import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docker.conftest import PATIENCE_SECONDS, REPOSITORY, StandIn

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
TARGETS = [os.kill, os.killpg]
UNTIL_STOPPED = "trap 'kill -KILL $!; {at_end}' TERM; sleep infinity & echo >$STAND_IN/begun; wait; wait"


@pytest.fixture
def begun(stand_in: StandIn) -> Iterator[Callable[[], None]]:
    """Returns once a container has begun, which says so."""
    path = stand_in.folder / "begun"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def wait() -> None:
        assert select.select([reader], [], [], PATIENCE_SECONDS)[0]

    yield wait
    os.close(reader)


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, err
    return out, err


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("number", SIGNALS)
def test_what_was_measured_is_analysed_and_its_place_told(
    stand_in: StandIn, begun: Callable[[], None], number: signal.Signals, target: Callable[[int, int], None]
) -> None:
    at_end = f"{stand_in.measures}; exit 130"
    stand_in.does("run", UNTIL_STOPPED.format(at_end=at_end))
    process = stand_in.start()
    begun()
    target(process.pid, number)
    out, _ = ended(process)
    assert stand_in.steps()[-2:] == ["run", "analyze"]
    assert out.splitlines() == [
        "a table",
        f"Measurement: {stand_in.measurement}",
        f"Report: {stand_in.measurement}/report.html",
    ]
    assert stand_in.containers() == []
    assert list(stand_in.temporary.iterdir()) == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("number", SIGNALS)
def test_a_bench_of_flags_ends_with_its_container(
    stand_in: StandIn, begun: Callable[[], None], number: signal.Signals, target: Callable[[int, int], None]
) -> None:
    stand_in.does("engine", UNTIL_STOPPED.format(at_end="echo a summary; exit 130"))
    process = stand_in.start(REPOSITORY / "docker/bench-flags", "engine", "--model", "x")
    begun()
    target(process.pid, number)
    assert ended(process)[0] == "a summary\n"
    assert stand_in.containers() == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("step", ["build", "needs", "prepare", "analyze"])
def test_any_step_ends_and_nothing_follows(
    stand_in: StandIn, begun: Callable[[], None], step: str, target: Callable[[int, int], None]
) -> None:
    stand_in.does(step, UNTIL_STOPPED.format(at_end="exit 130"))
    process = stand_in.start()
    begun()
    target(process.pid, signal.SIGTERM)
    out, _ = ended(process)
    assert stand_in.steps()[-1:] == ([] if step == "build" else [step])
    assert stand_in.containers() == []
    assert out.splitlines() == ([f"Measurement: {stand_in.measurement}"] if step == "analyze" else [])


def test_an_interrupted_run_that_measured_nothing_is_not_analysed(
    stand_in: StandIn, begun: Callable[[], None]
) -> None:
    stand_in.does("run", UNTIL_STOPPED.format(at_end="exit 130"))
    process = stand_in.start()
    begun()
    os.killpg(process.pid, signal.SIGINT)
    out, _ = ended(process)
    assert out == ""
    assert stand_in.steps()[-1] == "run"


def test_many_signals_are_one(stand_in: StandIn, begun: Callable[[], None]) -> None:
    at_end = f"{stand_in.measures}; exit 130"
    stand_in.does("run", UNTIL_STOPPED.format(at_end=at_end))
    process = stand_in.start()
    begun()
    for number in SIGNALS * 7:
        os.killpg(process.pid, number)
    _, err = ended(process)
    assert "Traceback" not in err
    assert stand_in.containers() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_make_passes_them_on(stand_in: StandIn, begun: Callable[[], None], number: signal.Signals) -> None:
    """SIGINT as a terminal or a CI runner sends it, to everybody; SIGTERM to make alone. Make's own code is its own."""
    at_end = f"{stand_in.measures}; exit 130"
    stand_in.does("run", UNTIL_STOPPED.format(at_end=at_end))
    process = stand_in.start("make", "--silent", "bench")
    begun()
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode != 0
    assert f"Report: {stand_in.measurement}/report.html" in out, err
    assert stand_in.containers() == []


def test_a_client_that_is_killed_takes_its_container_with_it(
    stand_in: StandIn, begun: Callable[[], None], tmp_path: Path
) -> None:
    client = tmp_path / "client"
    stand_in.does("run", f"echo $PPID >{client};" + UNTIL_STOPPED.format(at_end="exit 0"))
    process = stand_in.start()
    begun()
    os.kill(int(client.read_text()), signal.SIGKILL)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 128 + signal.SIGKILL
    assert stand_in.containers() == []
