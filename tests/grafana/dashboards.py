"""Reading the dashboards as tests need them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GRAFANA = Path(__file__).resolve().parents[2] / "grafana"
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))

VARIABLE = re.compile(r"\$\{(\w+)(?:[.:\[][^}]*)?\}|\$(\w+)")
LEGEND_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True)
class Query:
    """A query of a panel."""

    dashboard: str
    panel: str
    ref: str
    expression: str
    legend: str

    @property
    def labels(self) -> set[str]:
        """Labels that the legend shows."""
        return set(LEGEND_LABEL.findall(self.legend))

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel} {self.ref}"


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All that are no rows, those inside of rows too."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def queries(path: Path) -> list[Query]:
    return [
        Query(path.stem, panel["title"], target["refId"], target["expr"], target.get("legendFormat", ""))
        for panel in panels(load(path))
        for target in panel["targets"]
    ]


def variables_in(text: str) -> set[str]:
    """Names after a dollar sign, Grafana's own included."""
    return {braced or bare for braced, bare in VARIABLE.findall(text)}


def substituted(text: str, values: dict[str, str]) -> str:
    """As Grafana does before it asks Prometheus. Raises KeyError for an unknown variable."""
    return VARIABLE.sub(lambda match: values[match[1] or match[2]], text)


def texts(value: Any) -> Iterator[str]:
    """Every string in a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
