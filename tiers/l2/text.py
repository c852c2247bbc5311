"""The summary of `bench l2`, with the section and row names that LMCache's guide uses."""

from collections.abc import Sequence
from typing import Any

from tiers.l2.bench import L2Result
from tiers.l2.parameters import L2Parameters
from tiers.l2.records import CellRecord, operation_figures
from tiers.l2.specs import Spec
from tiers.sections import Section, render

ROWS = {
    "operation": "Operation",
    "rounds": "Rounds",
    "rounds_timed_out": "Rounds timed out",
    "warmup_rounds_timed_out": "Warm-up rounds timed out",
    "keys_per_round": "Keys / round",
    "total_keys": "Total keys",
    "total_success": "Total success",
    "duration_avg_ms": "Duration avg (ms)",
    "duration_min_ms": "Duration min (ms)",
    "duration_max_ms": "Duration max (ms)",
    "duration_p50_ms": "Duration p50 (ms)",
    "duration_p90_ms": "Duration p90 (ms)",
    "duration_p99_ms": "Duration p99 (ms)",
    "duration_std_ms": "Duration std (ms)",
    "avg_throughput_mbps": "Throughput avg (MiB/s)",
    "min_throughput_mbps": "Throughput min (MiB/s)",
    "max_throughput_mbps": "Throughput max (MiB/s)",
    "throughput_reason": "No throughput",
    "moved_bytes": "Bytes moved",
    "avg_ops_per_sec": "Avg ops/s",
    "avg_latency_per_key_ms": "Avg latency / key (ms)",
    "expected_max_hit_rate": "Expected max hit rate",
    "expected_hit_keys": "Expected hit keys",
    "actual_hit_rate": "Actual hit rate",
}


def header(specs: Sequence[Spec], p: L2Parameters) -> str:
    """What is going to be measured."""
    line = "=" * 60
    rows = {
        "Adapter config": "; ".join(spec.type for spec in specs),
        "L2 adapter JSON": "; ".join(spec.shown for spec in specs),
        "Keys / submit": p.num_keys,
        "In-flight / round": _axis(p.in_flight),
        "Keys / round": _axis([depth * p.num_keys for depth in p.in_flight]),
        "Data size / key": f"{_axis(p.data_size_kb)} KiB",
        "Data / round": f"{_axis(_round_mib(p))} MiB",
        "Rounds": f"{p.rounds} (+ {p.warmup_rounds} warmup)",
        "Lookup max hit rate": f"{p.lookup_max_hit_rate:.2%}",
        "Seed": p.seed,
    }
    return "\n".join(
        [line, "L2 Adapter Benchmark", line, *(f"  {key:<23}: {value}" for key, value in rows.items()), line]
    )


def summary(result: L2Result) -> str:
    """One block per cell, a table when there are several, and the checks."""
    parts = [_cell(result, cell) for cell in result.cells]
    if len(result.cells) > 1:
        parts.append(_matrix(result))
    parts.append(
        render("L2 Adapter Benchmark Checks", [("Checks", _checks(result)), ("Verdict", _verdict(result))])
    )
    return "\n\n".join(parts)


def _cell(result: L2Result, cell: CellRecord) -> str:
    p = result.parameters
    sections: list[Section] = [
        (
            "Configuration",
            {
                "Adapter": cell.adapter,
                "Keys / submit": p.num_keys,
                "In-flight / round": cell.in_flight,
                "Data size / key (KB)": cell.data_size_kb,
                "Measurement rounds": p.rounds,
                "Warmup rounds": p.warmup_rounds,
                "Lookup max hit rate": p.lookup_max_hit_rate,
                "Seed": p.seed,
            },
        )
    ]
    for operation in p.operations:
        figures = operation_figures(cell, operation, max_hit_rate=p.lookup_max_hit_rate)
        if figures is not None:
            sections.append((operation.capitalize(), _rows(figures)))
    if cell.notes:
        sections.append(("Notes", {f"Note {number}": note for number, note in enumerate(cell.notes, 1)}))
    return render(f"L2 Adapter Benchmark Result ({cell.adapter})", sections)


def _rows(figures: dict[str, Any]) -> dict[str, Any]:
    rows = {}
    for key, value in figures.items():
        if value is None:
            continue
        if key in ROWS:
            rows[ROWS[key]] = value
        elif "task_latency" in key:
            kind, statistic = key.split("task_latency_")
            name = f"{kind.rstrip('_').capitalize()} task".strip().capitalize() if kind else "Task"
            rows[f"{name} latency {statistic.removesuffix('_ms')}{' (ms)' if statistic != 'n' else ''}"] = (
                value
            )
    return rows


def _matrix(result: L2Result) -> str:
    """Adapters and cells side by side."""
    p = result.parameters
    operations = [operation for operation in p.operations if operation != "lookup"]
    titles = [f"{operation} MiB/s" for operation in operations] + [
        f"{operation} task p99 ms" for operation in operations
    ]
    table = [["adapter", "KiB", "in flight", *titles]]
    for cell in result.cells:
        every = [operation_figures(cell, op, max_hit_rate=p.lookup_max_hit_rate) or {} for op in operations]
        rates = [_cell_text(figures.get("avg_throughput_mbps")) for figures in every]
        tails = [_cell_text(figures.get("task_latency_p99_ms")) for figures in every]
        table.append([cell.adapter, str(cell.data_size_kb), str(cell.in_flight), *rates, *tails])
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in table
    )


def _cell_text(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _checks(result: L2Result) -> dict[str, str]:
    return {item.name: f"{item.status.value} ({item.detail})" for item in result.checks}


def _verdict(result: L2Result) -> dict[str, str]:
    rows = {"Verdict": result.verdict.line}
    if result.halted:
        rows["Ended early"] = result.halted
    return rows


def _axis(values: Sequence[float]) -> str:
    return ",".join(f"{value:g}" for value in values)


def _round_mib(p: L2Parameters) -> list[float]:
    """Of every cell of the matrix, in the order in which they are measured."""
    return [round(size * depth * p.num_keys / 1024, 2) for size in p.data_size_kb for depth in p.in_flight]
