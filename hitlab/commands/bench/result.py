"""What `bench server` and `bench l2` do alike: options of output, progress lines, files, ending on Ctrl-C."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contract.documents import read_document, whole_file
from contract.errors import ScenarioError
from hitlab.terminal import json_text, print_warning, shown

if TYPE_CHECKING:
    import pyarrow as pa

    from tiers.self_test import Trial

Format = Annotated[
    str, typer.Option("--format", metavar="FORMAT", help="Form of the result: terminal or json.")
]
Output = Annotated[
    Path | None,
    typer.Option("--output", metavar="PATH", help="Save the result there as well.", show_default=False),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No progress; the result is still printed.")]
Samples = Annotated[
    Path | None,
    typer.Option("--samples", metavar="PATH", help="Every measurement, as Parquet.", show_default=False),
]
Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="PATH", help="A page with charts, as HTML.", show_default=False),
]
Compare = Annotated[
    Path | None,
    typer.Option(
        "--compare",
        metavar="PATH",
        help="Compare with the JSON of an earlier run (--format json --output).",
        show_default=False,
    ),
]
SelfTest = Annotated[
    bool,
    typer.Option("--self-test", help="Inject every known fault, and show that each is noticed."),
]
FlameGraph = Annotated[str, typer.Option("--flamegraph", metavar="on|off", help="Record flame graphs.")]
FlameGraphOutput = Annotated[
    Path | None,
    typer.Option(
        "--flamegraph-output",
        metavar="PATH",
        help="SVG; by default /tmp/lmcache_bench_flames/<name>.<mode>.svg.",
        show_default=False,
    ),
]
FlameGraphScripts = Annotated[
    Path,
    typer.Option(
        "--flamegraph-scripts-dir", metavar="DIR", help="Folder with flamegraph.pl and stackcollapse-perf.pl."
    ),
]


def require_words(**options: tuple[str, Sequence[str]]) -> None:
    """Raises ScenarioError for an option that is none of its words."""
    for name, (value, words) in options.items():
        if value not in words:
            raise ScenarioError(f"--{name.replace('_', '-')} {value}: must be {' or '.join(words)}")


def numbers(option: str, text: str) -> tuple[int, ...]:
    """The whole numbers of `1,4,16`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ScenarioError(f"{option} {text}: must be whole numbers, separated by commas") from error


def speaker(quiet: bool) -> Callable[[str], None]:
    """Progress goes to stderr: stdout carries the result alone. What is wrong is never silenced."""

    def say(line: str) -> None:
        if not quiet or any(word in line for word in ("WARNING", "ERROR", "MISMATCH")):
            print(shown(line), file=sys.stderr, flush=True)

    return say


@contextmanager
def clean_stdout() -> Iterator[None]:
    """Whatever LMCache or an adapter prints, from Python or from C++, goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Set by the first SIGINT or SIGTERM: the run ends where it can, reads back and cleans up. The second ends it."""
    stop = threading.Event()

    def ask(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        print("ending after this step; once more to end at once", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def earlier(path: Path | None) -> dict[str, Any] | None:
    return None if path is None else read_document(path, "result of an earlier bench")


def show(document: dict[str, Any], text: str, *, form: str, output: Path | None) -> None:
    """Print the result in its form and save the same bytes."""
    written = json_text(document) if form == "json" else shown(text)
    print(written)
    if output is not None:
        with whole_file(output) as file:
            file.write(f"{written}\n".encode())


def add_comparison(document: dict[str, Any], before: dict[str, Any] | None) -> str:
    """Put the comparison with an earlier run into the document; its text, or "" where there is none."""
    if before is None:
        return ""
    from tiers.comparison import as_document, compare, summary

    comparison = compare(document, before)
    document["comparison"] = as_document(comparison)
    return "\n\n" + summary(comparison)


def show_and_write(
    document: dict[str, Any],
    text: str,
    before: dict[str, Any] | None,
    *,
    table: "Callable[[], pa.Table]",
    charts: Callable[[], list[str]],
    form: str,
    output: Path | None,
    samples: Path | None,
    report: Path | None,
) -> None:
    """Show a result, compared with an earlier one, and write the files that were asked for."""
    if document["profiled"]:
        text += "\nThis run was profiled: read its figures as indicative."
    text += add_comparison(document, before)
    show(document, text, form=form, output=output)  # first of all: a disk that is full takes no result away
    if samples is not None:
        from tiers.samples import write_table

        write_table(samples, table())
    if report is not None:
        from tiers.report.page import write_page

        write_page(report, document, _drawn(charts, report))


def _drawn(charts: Callable[[], list[str]], report: Path) -> list[str]:
    """The charts of a report; none, with a warning, where they cannot be drawn."""
    from contract.renderer import NotDrawnError

    try:
        return charts()
    except NotDrawnError as error:
        print_warning(f"{report}: has no charts: {error}")
        return []


def show_trials(trials: "tuple[Trial, ...]", *, form: str, output: Path | None) -> int:
    """The result of a self-test."""
    from tiers.self_test import document, exit_code, summary

    show(document(trials), summary(trials), form=form, output=output)
    return int(exit_code(trials))
