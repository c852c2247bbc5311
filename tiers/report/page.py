"""One page about a bench: verdict, checks, figures, charts, settings. It opens offline and has no scripts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from contract.documents import whole_file
from contract.foreign_text import visible
from tiers.l2.records import CellRecord
from tiers.report.charts import bars, cumulative, over_time
from tiers.server.records import ALL_RANKS, OPERATIONS, Sample

TEMPLATES = Path(__file__).parent


def l2_charts(document: dict[str, Any], cells: Sequence[CellRecord]) -> list[str]:
    """Throughput per cell and the distribution of task latencies. Empty for a run that measured nothing."""
    throughput = [
        {"place": _place(cell), "series": operation, "value": figures["avg_throughput_mbps"]}
        for cell in document["cells"]
        for operation, figures in cell["operations"].items()
        if figures.get("avg_throughput_mbps")
    ]
    latencies: dict[str, list[float]] = {}
    for cell in cells:
        for measured in cell.rounds:
            for task in measured.tasks:
                if task.seconds is not None and not measured.warmup:
                    name = f"{cell.adapter} {cell.data_size_kb} KiB x{cell.in_flight} {task.operation}"
                    latencies.setdefault(name, []).append(task.seconds * 1000)
    charts = []
    if throughput:
        charts.append(bars(throughput, title="Throughput of bytes that moved", unit="MiB/s"))
    if latencies:
        charts.append(cumulative(latencies, title="Latency of tasks", unit="ms"))
    return charts


def server_charts(samples: Sequence[Sample]) -> list[str]:
    """The distribution of latencies and their course over the run."""
    chosen = [sample for sample in samples if sample.measured and sample.rank == ALL_RANKS]
    if not chosen:
        return []
    latencies = {
        operation: values
        for operation in OPERATIONS
        if (values := [sample.seconds * 1000 for sample in chosen if sample.operation == operation])
    }
    course = [
        {"time": sample.start, "series": sample.operation, "value": sample.seconds * 1000}
        for sample in chosen
    ]
    return [
        cumulative(latencies, title="Latency of operations, all ranks together", unit="ms"),
        over_time(course, title="Course of the run", unit="ms"),
    ]


def write_page(path: Path, document: dict[str, Any], charts: Sequence[str]) -> None:
    """Raises ArtifactError when it cannot be written."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True
    )
    text = environment.get_template("page.html.j2").render(
        document=document,
        tables=_tables(document),
        charts=[Markup(chart) for chart in charts],  # noqa: S704 - drawn by us, text escaped
    )
    with whole_file(path) as file:
        file.write(visible(text).encode())


def _place(cell: dict[str, Any]) -> str:
    return f"{cell['adapter']} {cell['data_size_kb']} KiB x{cell['in_flight']}"


def _tables(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    if document["kind"] == "l2":
        return [
            (f"{_place(cell)}: {operation}", figures)
            for cell in document["cells"]
            for operation, figures in cell["operations"].items()
        ]
    tables = [("Results", document["results"])]
    tables += [
        (operation, {key: value for key, value in figures.items() if key != "by_rank"})
        for operation, figures in document["operations"].items()
    ]
    return tables
