"""The live panel of a bench, on stderr."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from contract.progress import Progress
from runner.bench.tally import Tally

REFRESHES_PER_SECOND = 4
LINES = 5


@contextmanager
def panel(workload: str, tally: Tally) -> Iterator[Progress]:
    """Shows the tally until the block ends; the callback tells the step."""
    view = _View(workload, tally)
    with Live(
        console=Console(stderr=True), get_renderable=view.render, refresh_per_second=REFRESHES_PER_SECOND
    ):
        yield view.step


class _View:
    def __init__(self, workload: str, tally: Tally) -> None:
        self._workload = workload
        self._tally = tally
        self._begun = time.monotonic()
        self._step = "Begin"
        self._last: deque[str] = deque(maxlen=LINES)

    def step(self, label: str, done: int, total: int | None) -> None:
        self._step = label if total is None else f"{label}: {done} of {total}"

    def render(self) -> Panel:
        tally = self._tally
        if tally.last and (not self._last or self._last[-1] != tally.last):
            self._last.append(tally.last)
        seconds = max(tally.elapsed_seconds, 1e-9)
        ttft, speed = tally.mean_ttft_seconds, tally.mean_decode_speed
        table = Table.grid(padding=(0, 3))
        table.add_row(
            "Requests", f"{tally.succeeded} answered, {tally.in_flight} in flight, {tally.failed} failed"
        )
        table.add_row("Mean TTFT", "-" if ttft is None else f"{ttft * 1e3:.1f} ms")
        table.add_row("Mean decode", "-" if speed is None else f"{speed:.1f} tok/s")
        table.add_row("Input", f"{tally.input_tokens:,} tokens, {tally.input_tokens / seconds:,.1f} tok/s")
        table.add_row("Output", f"{tally.output_tokens:,} tokens, {tally.output_tokens / seconds:,.1f} tok/s")
        table.add_row("Cached", f"{tally.cached_tokens:,} tokens")
        lines = Text("\n".join(self._last), style="dim", no_wrap=True, overflow="ellipsis")
        return Panel(
            Group(Text(self._step), table, lines),
            title=Text(f"{self._workload}, {time.monotonic() - self._begun:.0f} s"),
            title_align="left",
        )
