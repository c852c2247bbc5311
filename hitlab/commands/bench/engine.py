"""Send a workload to a running engine: flags, a config file, or questions and answers."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from contract.errors import ExitCode, ScenarioError, ServiceError
from contract.progress import Progress
from contract.warnings import warning_message
from hitlab.signals import stop_on_signals
from hitlab.terminal import Terminal, print_error, print_text, print_warning

if TYPE_CHECKING:
    from analyzer.analysis import Analysis
    from contract.measurement import Finding
    from hitlab.commands.bench.interactive import Explorer
    from runner.bench.run import BenchRun
    from runner.bench.settings import Settings
    from runner.bench.tally import Tally

PROGRAM = "hitlab bench engine"
BENCH_CONNECTIONS = 64
"""As many as any workload asks for by default; how many an open loop has at a time is not known before."""
QUALITY_FILE = "rag_qa_quality.json"


def command(context: typer.Context) -> int:
    from contract.redaction import Redactor, service_api_key
    from runner.bench.prepare import prepare_bench
    from runner.bench.run import StoppedBench, run_bench
    from runner.bench.settings import missing, parse_arguments, read_config, resolve, write_config
    from runner.bench.tally import Tally
    from runner.open_files import require_open_files

    terminal: Terminal = context.obj
    line = parse_arguments(context.args, PROGRAM)
    values: dict[str, Any] = {**({} if line.config is None else read_config(line.config)), **line.given}
    export = line.export_config
    asked = missing(values) and line.interactive and line.config is None and export is None
    asked = bool(asked and sys.stdin.isatty())
    api_key = service_api_key("")
    if asked:
        from hitlab.commands.bench.interactive import ask

        chosen = ask(values, _explorer(values, api_key))
        if chosen is None:
            print_error("nothing was started")
            return int(ExitCode.USAGE)
        values, export = chosen
    settings = resolve(values)
    _require_folder(settings.general.rag_output)
    redact = Redactor(api_key)
    if export is not None:
        return _export(settings, export, api_key, may_be_away=asked)
    require_open_files(BENCH_CONNECTIONS, "bench engine")
    tally = Tally()
    prepared = None
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
    except (ScenarioError, ServiceError) as error:
        if not asked or prepared is not None:
            raise
        from hitlab.commands.bench.interactive import keep_answers

        print_error(str(error))
        keep_answers(lambda path: write_config(path, known(settings.exported())))
        return int(error.exit_code)
    return show_summary(settings, run, said=prepared.engine.findings)


def known(document: dict[str, Any]) -> dict[str, Any]:
    """Without what nobody has said and nobody was asked for."""
    return {key: value for key, value in document.items() if value is not None}


def _explorer(values: dict[str, Any], api_key: str) -> "Explorer":
    """What the questions try addresses with."""
    from hitlab.commands.bench.interactive import Explorer, Found
    from runner.bench.engine import find_engine
    from runner.bench.lmcache import LmCache
    from runner.bench.settings import trust_of
    from runner.bench.sizing import told_by_engine

    trust = trust_of(values)

    def engine(url: str, model: str | None) -> Found:
        found = find_engine(url, model, api_key=api_key, trust=trust)
        return Found(found.model, told_by_engine(found))

    return Explorer(engine, lambda url, model: LmCache(url, trust).tokens_per_gb(model))


def _export(settings: "Settings", path: Path, api_key: str, *, may_be_away: bool) -> int:
    """Write the settings with what was found out. `may_be_away`: without it, when the engine does not answer."""
    from runner.bench.prepare import find_out, found_out
    from runner.bench.settings import write_config

    try:
        engine, size = find_out(settings, api_key=api_key)
        document = found_out(settings, engine, size)
    except ServiceError as error:
        if not may_be_away:
            raise
        print_warning(f"without the engine's model and size: {error}")
        document = known(settings.exported())
    write_config(path, document)
    print(path)
    return 0


def _require_folder(path: Path | None) -> None:
    """Before the bench, not after it."""
    if path is not None and not path.absolute().parent.is_dir():
        raise ScenarioError(f"--rag-output {path}: there is no folder {path.absolute().parent}")


def show_summary(settings: "Settings", run: "BenchRun", said: "Sequence[Finding]" = ()) -> int:
    """Analyse, print the summary, write the files, and return the exit code. `said`: warnings that were shown already."""
    from analyzer.bench.analyze import analyze_bench
    from analyzer.bench.summary import quality_document
    from analyzer.bench.table import summary_text
    from contract.documents import write_document
    from contract.manifest import read_measured_manifest

    general = settings.general
    manifest = read_measured_manifest(run.manifest.directory.manifest)

    def show(analysis: "Analysis") -> None:
        print_text(summary_text(analysis.document))

    analysis = analyze_bench(manifest, run.measurement.stamp, show=show, warn=print_warning)
    summary = analysis.document
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
    shown = {(finding.code, finding.message) for finding in said}
    for warning in summary["warnings"]:
        if (warning["code"], warning.get("message")) not in shown:
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
