"""Analyse a measurement again, or two saved Prometheus scrapes. Needs no engine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contract.errors import ScenarioError
from contract.kinds import is_bench
from contract.run_directory import MeasurementDirectory
from hitlab.arguments import ManifestPath
from hitlab.commands.run import print_ledgers, show_result
from hitlab.terminal import Terminal, print_json, print_note, print_text, print_warning

if TYPE_CHECKING:
    from analyzer.analysis import Analysis
    from contract.manifest import Manifest


def command(
    context: typer.Context,
    manifest: ManifestPath,
    measurement: Annotated[
        str | None,
        typer.Option(
            "--measurement", metavar="STAMP", help="A directory under result/runs.", show_default=False
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="FILE", help="Scrape before the load.", show_default=False),
    ] = None,
    after: Annotated[
        Path | None,
        typer.Option("--after", metavar="FILE", help="Scrape after the load.", show_default=False),
    ] = None,
    scenario: Annotated[
        Path | None,
        typer.Option(
            "--scenario",
            metavar="FILE",
            help="With --baseline and --after: take dp_size, engine_label_map and thresholds from this scenario.",
            show_default=False,
        ),
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="With --measurement: print what `run` prints instead of JSON.")
    ] = False,
) -> int:
    from analyzer.analyze import analyze_measurement
    from analyzer.offline import analyze_scrapes
    from contract.manifest import read_measured_manifest

    terminal: Terminal = context.obj
    prepared = read_measured_manifest(manifest)
    if scenario is not None and (baseline is None or after is None):
        raise ScenarioError(
            "--scenario goes with --baseline FILE and --after FILE; a measurement has its own settings"
        )
    if is_bench(prepared.document):
        return _analyze_bench(prepared, measurement, table=table)
    if table and measurement is not None and baseline is None and after is None:
        return show_result(manifest, MeasurementDirectory(prepared.directory.runs / measurement))
    if table:
        raise ScenarioError("analyze --table needs --measurement STAMP and nothing else")
    with terminal.progress() as progress:
        if measurement is not None and baseline is None and after is None:
            analysis = analyze_measurement(
                prepared, measurement, progress, show=show_document, warn=print_warning
            )
        elif measurement is None and baseline is not None and after is not None:
            analysis = analyze_scrapes(
                prepared,
                baseline,
                after,
                progress,
                scenario=scenario,
                say=print_note,
                show=show_document,
                warn=print_warning,
            )
        else:
            raise ScenarioError(
                "analyze needs either --measurement STAMP, or both --baseline FILE and --after FILE"
            )
    print_ledgers(analysis.document)
    if analysis.message:
        print_warning(analysis.message)
    return int(analysis.exit_code)


def show_document(analysis: "Analysis") -> None:
    print_json(analysis.document)


def _analyze_bench(manifest: "Manifest", measurement: str | None, *, table: bool) -> int:
    from analyzer.analyze import analyze_measurement
    from analyzer.bench.table import summary_text

    if measurement is None:
        raise ScenarioError("analyze of a bench needs --measurement STAMP, a directory under result/runs")

    def show_summary(analysis: "Analysis") -> None:
        print_text(summary_text(analysis.document))

    analysis = analyze_measurement(
        manifest, measurement, show=show_summary if table else show_document, warn=print_warning
    )
    if analysis.message:
        print_warning(analysis.message)
    return int(analysis.exit_code)
