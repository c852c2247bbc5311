"""The command line. One thin module per command; a service is imported only when its command runs."""

import logging
import sys
import threading
from typing import Annotated

import typer

from contract.documents import unwritable
from contract.errors import ExitCode, HitLabError
from hitlab.caller import take_umask
from hitlab.commands import (
    analyze,
    bench,
    demo,
    init,
    inspect,
    needs,
    prepare,
    report,
    run,
    sim,
    validate,
    watch,
)
from hitlab.secret_environment import load_secrets
from hitlab.signals import end_on_signals, hear_no_more, interruptible
from hitlab.streams import lost, outlast_readers
from hitlab.terminal import Terminal, print_error, print_thread_exception, print_traceback

app = typer.Typer(
    name="hitlab",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Benchmark KV-cache reuse in LLM serving: data with a known prefix-cache hit rate, a real engine, a verdict "
    "exact to the token.\n\nThe steps of a run: inspect (what is reachable?), prepare (build the data), validate (is it "
    "unchanged?), run (measure and analyse).",
)


def version_line(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"hitlab {version('hitlab')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress; results are still printed.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=version_line, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    context.obj = Terminal(quiet=quiet, debug=debug)


for module in (inspect, prepare, validate, run, analyze, report, watch, needs, demo, init):
    app.command(name=module.__name__.rsplit(".", 1)[1], help=module.__doc__)(interruptible(module.command))
app.command(
    name="sim",
    help=sim.__doc__,
    add_help_option=False,  # the simulator's own options, and its own --help
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(sim.command)


app.add_typer(bench.app)


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit with its code (design, section 7)."""
    outlast_readers()
    end_on_signals()
    threading.excepthook = print_thread_exception
    logging.getLogger("hitlab").addHandler(logging.NullHandler())
    sys.exit(_whole(_ended(sys.argv[1:] if arguments is None else arguments)))


def _whole(code: int) -> int:
    """The exit code, which also says whether the result has arrived."""
    found = lost()
    if found is None:
        return code
    name, error = found
    print_error(str(unwritable(name, error)))
    return ExitCode.ARTIFACTS if code in (ExitCode.DONE, ExitCode.GATE, ExitCode.INCONCLUSIVE) else code


def _ended(arguments: list[str]) -> int:
    """Run the command that `arguments` name; what ends it is told in one line."""
    debug = "--debug" in arguments
    try:
        take_umask()
        load_secrets()
        return app(arguments, standalone_mode=False, prog_name="hitlab") or 0
    except HitLabError as error:
        if error.exit_code == ExitCode.INTERRUPTED:
            hear_no_more()
        print_error(str(error))
        if debug:
            print_traceback()
        return int(error.exit_code)
    except typer.Exit as ending:
        return ending.exit_code
    except (KeyboardInterrupt, typer.Abort):
        hear_no_more()
        print_error("interrupted")
        return ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last handler
        code = _told(error)
        if debug:
            print_traceback()
        return code


def _told(error: Exception) -> int:
    """What is no error of ours: wrong usage, files, or a fault. Returns the exit code."""
    if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
        # Of files. Whoever writes artifacts names them (contract.documents); this is for the rest.
        print_error(str(unwritable(error.filename or "a file", error)))
        return ExitCode.ARTIFACTS
    usage_code = getattr(error, "exit_code", None)
    if usage_code is not None and hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        if context is not None:
            typer.echo(context.get_usage(), err=True)
        print_error(error.format_message())
        return int(usage_code)
    print_error(f"a fault in HitLab: {type(error).__name__}: {error} (--debug shows where)")
    return ExitCode.FAULT
