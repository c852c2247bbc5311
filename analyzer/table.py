"""The result as people read it: one table, five rows (reference 5.6), and one more for each ledger that differs."""

from typing import Any

from rich import box
from rich.table import Table

from analyzer.ledgers import LEDGERS
from analyzer.multimodal.table import image_result_rows


def result_title(run_id: str) -> str:
    return f"Prefix Cache Results of task [{run_id}]:"


def result_rows(analysis: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each row; a value that is not known is N/A."""
    if analysis.get("benchmark_mode") == "mm":
        return image_result_rows(analysis)
    actual = analysis["actual"]
    measured = _percent(actual["global_hit_rate"], 100)
    if actual["unit"] == "blocks" and actual["global_hit_rate"] is not None:
        measured += " (of blocks)"
    return [
        ("Overall Target Hit Rate", _percent(analysis["requested_target_hit_rate"], 100)),
        ("Overall Theoretical Hit Rate", _percent(analysis["theoretical_hit_rate"], 100)),
        ("Overall Actual Hit Rate", measured),
        ("Theory vs Actual Difference", _percent(analysis["theory_actual_difference_pp"], 1)),
        ("Theory vs Target Difference", _percent(analysis["target_difference_pp"], 1)),
        *_ledger_rows(analysis),
    ]


def _ledger_rows(analysis: dict[str, Any]) -> list[tuple[str, str]]:
    """Ledgers that differ from the first known one; the answers' where the counters give no rate; the prediction's where
    it is not the theory's. Nothing when all agree."""
    ledgers = analysis["ledgers"]
    against: dict[str, list[str]] = {}
    for difference in ledgers["differences"]:
        first, second = difference["between"]
        tokens, quantity = difference["tokens"], difference["quantity"]
        # Ranks are told where only they differ; the analysis has them all.
        by_rank = [f"rank {rank} {change:+,}" for rank, change in difference["by_dp"].items()]
        change = f"{tokens:+,}" if tokens else ", ".join(by_rank)
        against.setdefault(second, []).append(f"{change} {quantity} against {first}")
    if analysis["actual"]["global_hit_rate"] is None:
        against.setdefault("cached_tokens", ["the counters give no rate"])
    predicted = ledgers["prediction"]["total"]["hits"]
    if predicted is not None and predicted != analysis["theory"]["hit_tokens"]:
        change = predicted - analysis["theory"]["hit_tokens"]
        against.setdefault("prediction", []).append(f"{change:+,} hits against theory")
    return [
        (kind.row, _ledger_value(ledgers[kind.name]["total"], against[kind.name]))
        for kind in LEDGERS
        if kind.row is not None and kind.name in against
    ]


def _ledger_value(tokens: dict[str, Any], notes: list[str]) -> str:
    if tokens["hit_rate"] is None and tokens["hits"] is None and tokens["queries"] is None:
        return "N/A"
    hits, queries = ("N/A" if tokens[name] is None else f"{tokens[name]:,}" for name in ("hits", "queries"))
    rate = _percent(tokens["hit_rate"], 100)
    return f"{rate} ({hits} of {queries} tokens; {'; '.join(notes)})"


def result_table(analysis: dict[str, Any]) -> Table:
    table = Table("Prefix Cache Metric", "Value", box=box.DOUBLE_EDGE, show_lines=True)
    for name, value in result_rows(analysis):
        table.add_row(name, value)
    return table


def _percent(value: float | None, factor: int) -> str:
    return "N/A" if value is None else f"{value * factor:.2f}%"
