"""`report.html` of a bench."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from markupsafe import Markup

from analyzer.bench.summary import no_decode, read_bench, read_requests
from analyzer.html_report import charts, series
from analyzer.html_report.drawing import Chart
from analyzer.html_report.engine_timeline import engine_timeline
from analyzer.html_report.histogram import histogram
from analyzer.html_report.page import Cell, ShownWarning, Table, Verdict, known
from analyzer.html_report.skeleton import FOLDER, Warn, drawn, environment, policy, tell_of_missing
from analyzer.html_report.text import grouped, milliseconds, seconds
from analyzer.performance import summarize
from contract.command_log import LOGGER
from contract.documents import whole_file
from contract.foreign_text import visible
from contract.run_directory import MeasurementDirectory
from contract.warnings import WARNING_TEXTS, warning_message

ROWS_SHOWN = 200
_NO_DECODE_TIMES = "no answer has tokens that arrived one after another"
LATENCIES = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "ITL": "itl_ms", "E2EL": "request_latency_ms"}
Summary = Mapping[str, Any]


def write_page(summary: Summary, directory: MeasurementDirectory, *, warn: Warn = LOGGER.warning) -> None:
    """Write `report.html`. Equal input gives equal bytes. `warn` is told when the charts cannot be drawn."""
    html = render_bench(summary, directory, warn=warn)
    with whole_file(directory.report) as file:
        file.write(html.encode())


def render_bench(summary: Summary, directory: MeasurementDirectory, *, warn: Warn = LOGGER.warning) -> str:
    style = (FOLDER / "report.css").read_text(encoding="utf-8")
    engine = summary["engine"] or {}
    version = f" {engine['version']}" if engine.get("version") else ""
    context: dict[str, Any] = {
        "style": Markup(style),  # noqa: S704 - our own file
        "policy": policy(style),
        "run_id": summary["run_id"],
        "subtitle": f"{summary['config']['workload']} · {summary['status']} · engine{version} · "
        f"model {summary['config']['model']}",
        "verdict": _verdict(summary),
        "result_tables": [_result_table(summary), _cache_table(summary)],
        "warnings": [_shown(warning) for warning in summary["warnings"]],
        "latency_table": _latency_table(summary),
        "latency_charts": drawn(_latency_charts(directory)),
        "first_token_chart": drawn([_first_tokens(directory)]),
        "engine_charts": drawn([engine_timeline(directory, read_bench(directory))]),
        "phase_table": _phase_table(summary),
        "quality_tables": _quality_tables(summary),
        "facts": _facts(summary),
    }
    tell_of_missing(context, directory.report, warn)
    return visible(environment().get_template("bench.html.j2").render(context))


def _verdict(summary: Summary) -> Verdict:
    results = summary["results"]
    failed, total = results["failed_requests"], results["total_requests"]
    details = [f"{kind}: {count}" for kind, count in summary["errors"].items()]
    if summary["error"]:
        details.append(summary["error"])
    if summary["status"] in ("failed", "interrupted"):
        return Verdict("bad", f"The bench was {summary['status']} after {total} requests.", details)
    if failed:
        return Verdict("bad", f"{failed} of {total} requests failed.", details)
    measured = next((entry for entry in summary["cache"] if entry["stage"] == "formal"), None)
    found = f"All {total} requests were answered"
    if measured is not None and measured["cached_tokens"] is not None and measured["prompt_tokens"]:
        share = measured["cached_tokens"] / measured["prompt_tokens"]
        found += (
            f"; {share:.2%} of their {grouped(measured['prompt_tokens'])} prompt tokens came from the cache"
        )
    return Verdict("warn" if summary["warnings"] else "good", found + ".", details)


def _shown(warning: Mapping[str, Any]) -> ShownWarning:
    return ShownWarning(warning["code"], warning_message(warning), WARNING_TEXTS.get(warning["code"]))


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return grouped(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _result_table(summary: Summary) -> Table:
    results, load = summary["results"], summary["load"] or {}
    names = {
        "requests answered": results["successful_requests"],
        "requests failed": results["failed_requests"],
        "duration": None if results["elapsed_time"] is None else seconds(results["elapsed_time"]),
        "input tokens": results["total_input_tokens"],
        "output tokens": results["total_output_tokens"],
        "input tokens per second": results["input_throughput"],
        "output tokens per second": results["output_throughput"],
        "decode speed, tokens per second (tokens over time)": results["mean_decode_speed"],
        "decode speed, slow tail (P99)": results["p99_decode_speed"],
        "requests per second asked for": load.get("requested_rate"),
        "requests per second reached": load.get("reached_rate"),
        "concurrency asked for": load.get("requested_concurrency"),
        "concurrency reached (mean)": load.get("mean_concurrency"),
        "requests not sent in time": load.get("not_sent"),
    }
    optional = ("asked for", "per second reached")
    rows = [
        [Cell(name), known(value, _number, "no request has one")]
        for name, value in names.items()
        if value is not None or not name.endswith(optional)
    ]
    return Table("The measured phase", ("", "value"), rows)


def _cache_table(summary: Summary) -> Table:
    names = (
        ("prompt tokens", "prompt_tokens"),
        ("cached tokens of the answers", "cached_tokens"),
        ("hit tokens of the engine's counters", "hit_tokens"),
        ("hit tokens of the external cache", "external_hit_tokens"),
        ("expected by the block model, least", "predicted_least"),
        ("expected by the block model, most", "predicted_most"),
    )
    stages = summary["cache"]
    rows = [
        [
            Cell(title),
            *(known(stage[key], _number, _why(stage["unavailable"], key)) for stage in stages),
        ]
        for title, key in names
    ]
    rows.append(
        [Cell("requests as expected"), *(Cell(f"{s['as_predicted']} of {s['compared']}") for s in stages)]
    )
    titles = ["warm phases" if stage["stage"] == "warmup" else "measured" for stage in stages]
    return Table("What the cache did", ("", *titles), rows)


def _why(unavailable: Mapping[str, str], key: str) -> str | None:
    return unavailable.get("predicted" if key.startswith("predicted") else key)


def _latency_table(summary: Summary) -> Table:
    rows = []
    for title, name in LATENCIES.items():
        found = summary["distributions"][name]
        if found is None:
            rows.append([Cell(title), Cell(None, _why_none(name)), *[Cell(None, "")] * 6])
            continue
        values = [found[key] for key in ("mean", "min", "p50", "p90", "p99", "max")]
        rows.append(
            [Cell(title), Cell(grouped(found["n"])), *(Cell(milliseconds(value)) for value in values)]
        )
    head = ("", "values", "mean", "least", "p50", "p90", "p99", "most")
    without = ", ".join(f"{reason}: {count}" for reason, count in summary["without_decode"].items())
    note = f"Answers without TPOT, ITL and decode speed: {without}." if without else None
    return Table("Answered requests", head, rows, note)


def _why_none(name: str) -> str:
    return _NO_DECODE_TIMES if name in ("tpot_ms", "itl_ms") else "no answer has one"


def _phase_table(summary: Summary) -> Table:
    rows = [
        [
            Cell(phase["name"]),
            Cell("measured" if phase["stage"] == "formal" else "warm"),
            Cell(grouped(phase["planned"])),
            Cell(grouped(phase["answered"])),
            Cell(grouped(phase["failed"])),
            Cell(seconds(phase["seconds"])),
            Cell(f"{phase['mean_in_flight']:.2f}"),
        ]
        for phase in summary["phases"]
    ]
    return Table("Phases", ("phase", "", "planned", "answered", "failed", "lasted", "in flight (mean)"), rows)


def _quality_tables(summary: Summary) -> list[Table]:
    if "quality" not in summary:
        return []
    quality = summary["quality"]
    found = quality["summary"]
    samples = [
        [
            Cell(sample["sample_id"]),
            known(sample["f1"], lambda value: f"{value:.3f}", "no closed answer tags"),
            known(
                sample["answer"] if sample["parsed"] else None,
                lambda text: text[:200],
                "no closed answer tags",
            ),
        ]
        for sample in quality["per_sample"][:ROWS_SHOWN]
    ]
    totals = [
        [Cell("samples measured"), Cell(grouped(found["num_samples"]))],
        [Cell("samples scored"), Cell(grouped(found["num_parsed"]))],
        [
            Cell("parse rate"),
            known(found["parse_rate"], lambda value: f"{value:.2%}", "nothing was measured"),
        ],
        [
            Cell("mean F1 of the scored"),
            known(found["f1_mean"], lambda value: f"{value:.4f}", "nothing was scored"),
        ],
        [Cell("run fingerprint"), Cell(quality["run_fingerprint"])],
    ]
    return [
        Table("Scores", ("", "value"), totals),
        Table("Samples", ("sample", "F1", "answer"), samples, numbers=False),
    ]


def _facts(summary: Summary) -> list[tuple[str, Cell]]:
    engine = summary["engine"] or {}
    values = {
        **summary["facts"],
        **summary["parameters"],
        "engine": summary["config"]["engine_url"],
        "engine version": engine.get("version"),
        "block size": engine.get("block_size"),
        "tokens per GB from": summary["size_source"],
        "tokens counted by": summary["tokenizer"],
        "warm phases": summary["config"]["warmup_policy"],
        "fingerprint": summary["fingerprint"],
        "HitLab": summary["versions"]["hitlab"],
        "host": summary["host"]["system"],
        "began": summary["started_at"],
        "ended": summary["finished_at"],
    }
    return [(name, known(value, str, "not known")) for name, value in values.items()]


# ---- charts --------------------------------------------------------------------------------------------------------


def _latency_charts(directory: MeasurementDirectory) -> list[Chart | None]:
    rows = [row for row in read_requests(directory) if row["error_kind"] is None]
    several = [row for row in rows if no_decode(row) is None]
    columns: dict[str, Sequence[float]] = {
        "TTFT": [row["ttft_s"] for row in rows if row["ttft_s"] is not None],
        "TPOT": [(row["e2el_s"] - row["ttft_s"]) / (row["completion_tokens"] - 1) for row in several],
        "ITL": list(chain.from_iterable(row["itl_s"] for row in several)),
        "E2EL": [row["e2el_s"] for row in rows],
    }
    found: list[Chart | None] = []
    for name, values in columns.items():
        column = np.asarray(values, dtype=np.float64) * 1e3
        summary = summarize(column.copy())
        if summary is not None:
            counted = histogram([column], summary.minimum, summary.median, summary.maximum, summary.count)
            found.append(charts.latency_chart(name, summary, counted))
    return found


def _first_tokens(directory: MeasurementDirectory) -> Chart | None:
    rows = read_requests(directory)
    both = [
        row for row in rows if row["ttft_s"] and row["cached_tokens"] is not None and row["prompt_tokens"]
    ]
    points = series.FirstTokens(
        np.array([row["cached_tokens"] / row["prompt_tokens"] for row in both], dtype=np.float64),
        np.array([row["ttft_s"] for row in both], dtype=np.float64),
        len(rows) - len(both),
    )
    return charts.first_token_chart(points)
