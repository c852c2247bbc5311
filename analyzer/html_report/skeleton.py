"""What every page shares: templates that escape, a policy that lets nothing else run, charts as pictures."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analyzer.html_report import text
from analyzer.html_report.drawing import Chart, draw

FOLDER = Path(__file__).parent


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
    return [
        {
            "chart": chart,
            "wide": draw(chart.wide, label=f"{chart.title}. {chart.description}"),
            "narrow": chart.narrow and draw(chart.narrow, label=f"{chart.title}. {chart.description}"),
        }
        for chart in found
        if chart is not None
    ]
