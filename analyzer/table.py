"""The result as people read it: one table, five rows (reference 5.6)."""

from typing import Any

from rich import box
from rich.table import Table


def result_title(run_id: str) -> str:
    return f"Prefix Cache Results of task [{run_id}]:"


def result_rows(analysis: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each row; a value that is not known is N/A."""
    return [
        ("Overall Target Hit Rate", _percent(analysis["requested_target_hit_rate"], 100)),
        ("Overall Theoretical Hit Rate", _percent(analysis["theoretical_hit_rate"], 100)),
        ("Overall Actual Hit Rate", _percent(analysis["actual"]["global_hit_rate"], 100)),
        ("Theory vs Actual Difference", _percent(analysis["theory_actual_difference_pp"], 1)),
        ("Theory vs Target Difference", _percent(analysis["target_difference_pp"], 1)),
    ]


def result_table(analysis: dict[str, Any]) -> Table:
    table = Table("Prefix Cache Metric", "Value", box=box.DOUBLE_EDGE, show_lines=True)
    for name, value in result_rows(analysis):
        table.add_row(name, value)
    return table


def _percent(value: float | None, factor: int) -> str:
    return "N/A" if value is None else f"{value * factor:.2f}%"
