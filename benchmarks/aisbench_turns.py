"""What taking a row costs the AISBench driver as a load grows.

    PYTHONPATH=aisbench_plugin .venv-dev/bin/python -m benchmarks.aisbench_turns

Prints the CPU time of one row, taken and ended, under the lock that all processes share, and how many times as long it
is as with 10,000 rows.
"""

import multiprocessing
import tempfile
import time
from pathlib import Path

from hitlab_aisbench.turns import Turns, write_turns

ROWS = (10_000, 100_000, 320_000, 1_000_000)
TURNS = 5_000
SLOTS = 64
LANES = 128


def seconds_per_row(rows: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        write_turns(Path(name), (row % LANES for row in range(rows)))
        turns = Turns(Path(name), multiprocessing.Lock())
        running: list[int] = []
        begun = time.process_time()
        for _ in range(TURNS):
            row = turns.take()
            if row is not None:
                running.append(row)
            if len(running) == SLOTS:
                turns.end(running.pop(0))
        return (time.process_time() - begun) / TURNS


def main() -> None:
    first = None
    for rows in ROWS:
        each = min(seconds_per_row(rows) for _ in range(3))
        first = first or each
        print(
            f"{rows:9,} rows: {each * 1e6:6.1f} us a row, {each / first:.2f} times as long as with {ROWS[0]:,}"
        )


if __name__ == "__main__":
    main()
