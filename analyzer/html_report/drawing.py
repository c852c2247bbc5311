"""From a Vega-Lite chart to SVG inside a page: no script, no link, colours from the page's style sheet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from contract.renderer import RENDERER

SVG = "http://www.w3.org/2000/svg"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# Colours are variables of report.css, so that one drawing fits light, dark and paper.
CONFIG: dict[str, Any] = {
    "background": None,
    "font": FONT,
    "padding": {"left": 2, "right": 8, "top": 4, "bottom": 2},
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "domainColor": "var(--axis)",
        "tickColor": "var(--axis)",
        "gridColor": "var(--grid)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelPadding": 4,
    },
    "axisX": {"grid": False, "labelFlush": True},
    "axisY": {"domain": False, "ticks": False},
    "legend": {
        "orient": "top",
        "title": None,
        "labelColor": "var(--text)",
        "labelFontSize": 12,
        "symbolStrokeWidth": 2.5,
        "symbolSize": 180,
        "columnPadding": 18,
        "offset": 6,
    },
    "title": {"anchor": "start", "color": "var(--text)", "fontSize": 12, "fontWeight": "normal", "offset": 6},
    "header": {"labelColor": "var(--text)", "titleColor": "var(--text)"},
}


@dataclass(frozen=True)
class Chart:
    """`description` says in words what is seen; `note` how the drawing was made. Specs: Vega-Lite, by width of the page.

    `narrow` None: `wide` fits every page.
    """

    name: str
    title: str
    description: str
    note: str | None
    wide: dict[str, Any]
    narrow: dict[str, Any] | None = None


def draw(specs: Sequence[dict[str, Any]], labels: Sequence[str]) -> list[Markup]:
    """Each chart as an SVG element, described by its label. A mark that has a description shows it when pointed at.

    The data must be in the specs: nothing is fetched. Raises NotDrawnError.
    """
    texts = RENDERER.draw([{"config": CONFIG, **spec} for spec in specs]) if specs else []
    return [_element(text, label) for text, label in zip(texts, labels, strict=True)]


def _element(text: str, label: str) -> Markup:
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(text)  # noqa: S314 - our own drawing, not text from outside
    for element in list(root.iter()):
        for name in ("aria-roledescription", "role", "aria-hidden"):
            element.attrib.pop(name, None)
        description = element.attrib.pop("aria-label", None)
        if description is not None and element.tag == f"{{{SVG}}}path":
            title = ElementTree.SubElement(element, f"{{{SVG}}}title")
            title.text = description
    root.attrib.pop("class", None)
    root.set("role", "img")
    root.set("aria-label", label)
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704 - built as XML, so escaped
