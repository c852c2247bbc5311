"""What goes where: results to stdout; progress, warnings and errors to stderr."""

import io
import json
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contract.foreign_text import printable_json, visible
from contract.progress import Progress as ProgressCallback
from contract.progress import silent
from contract.redaction import redacted

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Table

REFRESH_SECONDS = 0.1
TABLE_WIDTH = 200


def shown(text: str) -> str:
    """`text`, a few lines of ours with words of others in them, as a terminal may get it."""
    return visible(redacted(text))


def print_error(message: str) -> None:
    """One line per problem, each marked as an error."""
    for line in shown(message).split("\n"):
        print(f"ERROR: {line}", file=sys.stderr)


def print_warning(message: str) -> None:
    print(f"WARNING: {shown(' '.join(message.split()))}", file=sys.stderr)


def print_note(message: str) -> None:
    """A line about the result that is no warning."""
    print(shown(" ".join(message.split())), file=sys.stderr)


def print_traceback() -> None:
    """Of the exception that is being handled: `--debug`."""
    print(shown(traceback.format_exc()), end="", file=sys.stderr)


def print_thread_exception(ended: threading.ExceptHookArgs) -> None:
    """Of a thread that an exception has ended: a fault of ours, told as such."""
    lines = traceback.format_exception(ended.exc_type, ended.exc_value, ended.exc_traceback)
    print(shown("".join(lines)), end="", file=sys.stderr)


def print_text(text: str) -> None:
    """A result in words, on stdout."""
    print(shown(text))


def print_tables(*tables: "Table") -> None:
    """Results as tables, on stdout: wide enough that no cell is ever cut, whatever stdout is."""
    from rich.console import Console

    text = io.StringIO()
    console = Console(file=text, width=TABLE_WIDTH, markup=False, emoji=False)
    for table in tables:
        console.print(table)
    print_text(text.getvalue().removesuffix("\n"))


def json_text(document: Any, *, one_line: bool = False) -> str:
    """A result in JSON, as a terminal may get it."""
    return printable_json(json.dumps(document, ensure_ascii=False, indent=None if one_line else 2))


def print_json(document: Any, *, one_line: bool = False) -> None:
    print(json_text(document, one_line=one_line))


@dataclass(frozen=True)
class Terminal:
    """How a command shows what it does. Progress bars appear on a terminal only."""

    quiet: bool = False
    debug: bool = False

    def say(self, text: str) -> None:
        """What a driver prints, as it comes; a bar that is being shown stays below it."""
        if not self.quiet:
            sys.stderr.write(shown(text.removesuffix("\r")) + ("\r" if text.endswith("\r") else ""))
            sys.stderr.flush()

    @contextmanager
    def progress(self) -> Iterator[ProgressCallback]:
        """A callback for services; bars vanish into their last state when the block ends."""
        if self.quiet:
            yield silent
            return
        if not sys.stderr.isatty():
            yield _Steps()
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        with Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
        ) as bars:
            yield _Bars(bars)


class _Bars:
    """One bar per label. Updates are thinned out, so that a callback per request costs nothing."""

    def __init__(self, bars: "Progress") -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._shown = 0.0

    def __call__(self, label: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if label in self._tasks and done != total and now - self._shown < REFRESH_SECONDS:
            return
        self._shown = now
        if label not in self._tasks:
            self._finish_open()
            self._tasks[label] = self._bars.add_task(shown(label), total=total)
        self._bars.update(self._tasks[label], completed=done, total=total)

    def _finish_open(self) -> None:
        """A step without a count is over when the next one begins."""
        for task in self._bars.tasks:
            if task.total is None:
                self._bars.update(task.id, total=1, completed=1)


class _Steps:
    """Off a terminal: one line when a step begins."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, label: str, done: int, total: int | None) -> None:  # noqa: ARG002 - the protocol's
        if label not in self._seen:
            self._seen.add(label)
            print(f"{shown(label)}{'' if total is None else f' ({total})'} ...", file=sys.stderr, flush=True)
