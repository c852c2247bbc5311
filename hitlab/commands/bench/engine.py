"""Send a workload to a running engine: flags, a config file, or questions and answers."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from contract.errors import ExitCode, ScenarioError
from contract.progress import Progress
from contract.warnings import warning_message
from hitlab.signals import stop_on_signals
from hitlab.terminal import Terminal, print_error, print_text, print_warning

if TYPE_CHECKING:
    from runner.bench.run import BenchRun
    from runner.bench.settings import Settings
    from runner.bench.tally import Tally

PROGRAM = "hitlab bench engine"
QUALITY_FILE = "rag_qa_quality.json"


def command(context: typer.Context) -> int:
    from contract.redaction import Redactor, service_api_key
    from hitlab.commands.bench.interactive import ask
    from runner.bench.prepare import find_out, found_out, prepare_bench
    from runner.bench.run import StoppedBench, run_bench
    from runner.bench.settings import missing, parse_arguments, read_config, resolve, write_config
    from runner.bench.tally import Tally

    terminal: Terminal = context.obj
    line = parse_arguments(context.args, PROGRAM)
    values: dict[str, Any] = {**({} if line.config is None else read_config(line.config)), **line.given}
    export = line.export_config
    if missing(values) and line.interactive and line.config is None and export is None and sys.stdin.isatty():
        chosen = ask(values)
        if chosen is None:
            print_error("nothing was started")
            return int(ExitCode.USAGE)
        values, export = chosen
    settings = resolve(values)
    _require_folder(settings.general.rag_output)
    api_key = service_api_key("")
    redact = Redactor(api_key)
    if export is not None:
        engine, size = find_out(settings, api_key=api_key)
        write_config(export, found_out(settings, engine, size))
        print(export)
        return 0
    tally = Tally()
    try:
        with (
            _shown(terminal, settings, tally) as progress,
            stop_on_signals() as stop,  # the innermost: the summary is written without its clock
        ):
            prepared = prepare_bench(settings, api_key=api_key, stop=stop, progress=progress)
            for finding in prepared.engine.findings:  # at once: a long load may be for nothing
                print_warning(f"{finding.code}: {finding.message}")
            run = run_bench(
                prepared,
                api_key=api_key,
                redact=redact,
                csv=None if settings.general.no_csv else settings.general.output_dir / "bench_results.csv",
                tally=tally,
                stop=stop,
                progress=progress,
            )
    except StoppedBench as stopped:
        show_summary(settings, stopped.run)
        raise
    return show_summary(settings, run)


def _require_folder(path: Path | None) -> None:
    """Before the bench, not after it."""
    if path is not None and not path.absolute().parent.is_dir():
        raise ScenarioError(f"--rag-output {path}: there is no folder {path.absolute().parent}")


def show_summary(settings: "Settings", run: "BenchRun") -> int:
    """Analyse, print the summary, write the files, and return the exit code."""
    from analyzer.bench.analyze import analyze_bench
    from analyzer.bench.summary import quality_document
    from analyzer.bench.table import summary_text
    from contract.documents import write_document
    from contract.manifest import read_measured_manifest

    general = settings.general
    manifest = read_measured_manifest(run.manifest.directory.manifest)
    analysis = analyze_bench(manifest, run.measurement.stamp)
    summary = analysis.document
    print_text(summary_text(summary))
    written = [run.measurement.report]
    if not general.no_csv:
        written.append(general.output_dir / "bench_results.csv")
    if general.json_summary:
        written.append(general.output_dir / "bench_summary.json")
        write_document(written[-1], summary)
    if "quality" in summary:
        written.append(general.rag_output or general.output_dir / QUALITY_FILE)
        write_document(written[-1], quality_document(summary, str(written[-1])))
    for path in written:
        print(f"{path} written", file=sys.stderr)
    for warning in summary["warnings"]:
        print_warning(f"{warning['code']}: {warning_message(warning)}")
    if analysis.message:
        print_error(analysis.message)
    return int(analysis.exit_code)


@contextmanager
def _shown(terminal: Terminal, settings: "Settings", tally: "Tally") -> Iterator[Progress]:
    """The live panel on a terminal, one line per step elsewhere, nothing when it is to be quiet."""
    quiet = Terminal(quiet=terminal.quiet or settings.general.quiet)
    if quiet.quiet or not sys.stderr.isatty():
        with quiet.progress() as progress:
            yield progress
        return
    from hitlab.commands.bench.live import panel

    with panel(settings.workload.name, tally) as progress:
        yield progress
