"""Latency and throughput of one measurement, the latest complete one unless another is named."""

import sys
from typing import Annotated

import typer

from hitlab.arguments import ManifestPath
from hitlab.terminal import print_json, print_tables, print_text


def command(
    manifest: ManifestPath,
    measurement: Annotated[
        str | None,
        typer.Option(
            "--measurement", metavar="STAMP", help="A directory under result/runs.", show_default=False
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON also on a terminal.")] = False,
) -> int:
    from analyzer.report import performance_report, report_notes, report_tables, report_title
    from contract.manifest import read_prepared_manifest

    report = performance_report(read_prepared_manifest(manifest), measurement)
    if json or not sys.stdout.isatty():
        print_json(report)
        return 0
    print_text(report_title(report))
    print_tables(*report_tables(report))
    for note in report_notes(report):
        print_text(note)
    print_text(f"Written to: {report['csv']} and {report['json']}")
    return 0
