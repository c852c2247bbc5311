"""What every page shares: templates that escape, a policy that lets nothing else run, charts as pictures."""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analyzer.html_report import text
from analyzer.html_report.drawing import Chart, draw
from contract.renderer import NotDrawnError

FOLDER = Path(__file__).parent
Warn = Callable[[str], None]


@cache
def environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["grouped"] = text.grouped
    return environment


def policy(style: str) -> str:
    """Nothing is loaded and nothing runs: only this style sheet applies."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def drawn(found: Sequence[Chart | None]) -> list[dict[str, Any]]:
    """Each chart with its pictures, or without them and with the `reason`."""
    shown = [chart for chart in found if chart is not None]
    labelled = [
        (spec, f"{chart.title}. {chart.description}")
        for chart in shown
        for spec in (chart.wide, chart.narrow)
        if spec is not None
    ]
    try:
        pictures = iter(draw([spec for spec, _ in labelled], [label for _, label in labelled]))
    except NotDrawnError as error:
        return [{"chart": chart, "wide": None, "narrow": None, "reason": str(error)} for chart in shown]
    return [
        {
            "chart": chart,
            "wide": next(pictures),
            "narrow": None if chart.narrow is None else next(pictures),
            "reason": None,
        }
        for chart in shown
    ]


def not_drawn(context: Mapping[str, Any]) -> str | None:
    """Why charts of a page have no pictures; None when all have theirs."""
    charts = (
        chart for name, found in context.items() if name.endswith(("_chart", "_charts")) for chart in found
    )
    return next((chart["reason"] for chart in charts if chart["reason"] is not None), None)


def tell_of_missing(context: Mapping[str, Any], path: Path, warn: Warn) -> None:
    """A page without pictures is still a page; whoever waits for it learns why it has none."""
    reason = not_drawn(context)
    if reason is not None:
        warn(f"{path}: has no charts: {reason}")
