"""Order and exclusion of lanes, against a plain reading of the rule, and with several processes."""

import itertools
import multiprocessing as mp
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hitlab_aisbench.turns import Turns, write_turns
from hypothesis import given, settings
from hypothesis import strategies as st

LANES = st.lists(st.sampled_from([None, "a", "b", ("group-1", 0)]), min_size=1, max_size=40)


def may_start(lanes: list[object], started: set[int], over: set[int]) -> list[int]:
    """Rows whose lane has nothing before them that is not over, in order."""
    return [
        row
        for row, lane in enumerate(lanes)
        if row not in started
        and (lane is None or all(other in over for other in range(row) if lanes[other] == lane))
    ]


@settings(deadline=None)
@given(LANES, st.randoms(use_true_random=True))
def test_the_earliest_row_that_may_start_is_handed_out(lanes: list[object], choose: random.Random) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_turns(folder, lanes)
        # Two processes see the same turns.
        turns = [Turns(folder, threading.Lock()), Turns(folder, threading.Lock())]
        started: set[int] = set()
        over: set[int] = set()
        while len(over) < len(lanes):
            side = choose.choice(turns)
            running = sorted(started - over)
            if running and choose.random() < 0.5:
                row = choose.choice(running)
                side.end(row)
                over.add(row)
                continue
            expected = may_start(lanes, started, over)
            row_taken = side.take()
            assert row_taken == (expected[0] if expected else None)
            if row_taken is not None:
                started.add(row_taken)
            assert side.all_taken == (len(started) == len(lanes))
            if row_taken is None and not running:
                raise AssertionError("locked up")


def test_far_behind_what_has_been_taken(tmp_path: Path) -> None:
    """Pieces of rows are skipped as wholes; the first row stays behind all others."""
    write_turns(tmp_path, [None] * 5000)
    turns = Turns(tmp_path, threading.Lock())
    assert [turns.take() for _ in range(5000)] == list(range(5000))
    assert turns.take() is None
    assert turns.all_taken


def _work(
    folder: str, lock: "mp.synchronize.Lock", slots: int, out: "mp.Queue[list[tuple[int, int, int]]]"
) -> None:
    turns, mine = Turns(Path(folder), lock), []
    running: list[tuple[int, int]] = []
    while not turns.all_taken or running:
        if running:
            row, start = running.pop(0)
            time.sleep(0.0005)
            mine.append((row, start, time.monotonic_ns()))
            turns.end(row)
        while len(running) < slots and (taken := turns.take()) is not None:
            running.append((taken, time.monotonic_ns()))
    out.put(mine)


def test_several_processes_share_the_lanes(tmp_path: Path) -> None:
    """Nothing is lost or sent twice, lanes never overlap, and it ends."""
    lanes = [("lane", row % 5) for row in range(300)]
    write_turns(tmp_path, lanes)
    context = mp.get_context("fork")
    lock, out = context.Lock(), context.Queue()
    workers = [context.Process(target=_work, args=(str(tmp_path), lock, 3, out)) for _ in range(3)]
    for worker in workers:
        worker.start()
    spans = sorted(span for _ in workers for span in out.get(timeout=30))
    for worker in workers:
        worker.join(5)
        assert worker.exitcode == 0
    assert [row for row, _, _ in spans] == list(range(300))
    for lane in range(5):
        own = [span for span in spans if span[0] % 5 == lane]
        assert all(later[1] >= earlier[2] for earlier, later in itertools.pairwise(own))


class Touched:
    """A level of the set that counts how often it is read and written."""

    def __init__(self, words: Any, steps: list[int]) -> None:
        self.words = words
        self.steps = steps

    def __getitem__(self, at: int) -> Any:
        self.steps[0] += 1
        return self.words[at]

    def __setitem__(self, at: int, word: int) -> None:
        self.steps[0] += 1
        self.words[at] = word


SHAPES: dict[str, Callable[[int, int], object]] = {
    "no lanes": lambda _row, _rows: None,
    "32 lanes": lambda row, _rows: row % 32,
    "a lane each for hundreds": lambda row, _rows: row // 500,
    # Whoever waits for nothing stands at the far end.
    "one lane, and the last 500": lambda row, rows: None if row >= rows - 500 else "a",
}


def most_steps(folder: Path, rows: int, shape: str) -> int:
    """Words touched by the most expensive of 1,000 turns, some of which end while others are taken."""
    folder.mkdir()
    write_turns(folder, [SHAPES[shape](row, rows) for row in range(rows)])
    turns, steps, worst = Turns(folder, threading.Lock()), [0], 0
    turns._levels = [Touched(level, steps) for level in turns._levels]
    running: list[int] = []
    for _ in range(1000):
        steps[0] = 0
        row = turns.take()
        if row is not None:
            running.append(row)
        if len(running) == 16 or row is None:
            turns.end(running.pop(0))
        worst = max(worst, steps[0])
    return worst


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_of_a_large_load_costs_at_most_twice_what_it_costs_in_a_small_one(
    tmp_path: Path, shape: str
) -> None:
    """Counted in words of the set that are touched; benchmarks/aisbench_turns.py has the times."""
    small, large = (most_steps(tmp_path / str(rows), rows, shape) for rows in (10_000, 320_000))
    assert 0 < large <= 2 * small
    assert large <= 4 + 2 * 4 * 2, "found in four levels; taken out and put in there, each a read and a write"
