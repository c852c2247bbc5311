"""Compare two benches, request by request: results files of rag-qa-quality, or bench_summary.json of any workload."""

from pathlib import Path
from typing import Annotated

import typer

from hitlab.terminal import print_json, print_text

FilePath = Annotated[Path, typer.Argument(metavar="FILE", help="A results file.", show_default=False)]


def command(
    first: FilePath,
    second: FilePath,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> int:
    from analyzer.bench.compare import compare_files, comparison_text

    comparison = compare_files(first, second)
    if json:
        print_json(comparison)
    else:
        print_text(comparison_text(comparison))
    return 0
