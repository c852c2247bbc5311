"""Charts of a bench as SVG: Vega-Lite, drawn here, so that the page needs no script."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from contract.renderer import RENDERER

MAX_POINTS = 2000
WIDTH = 640


def draw(values: Sequence[dict[str, Any]], *, title: str, height: int = 220, **spec: Any) -> str:
    """One chart of `values`. Strings in them are text of the chart, never markup. Raises NotDrawnError."""
    chart = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": title,
        "width": WIDTH,
        "height": height,
        "data": {"values": list(values)},
        "config": {"background": "transparent", "font": "sans-serif"},
        **spec,
    }
    (picture,) = RENDERER.draw([chart])
    return picture


def cumulative(series: Mapping[str, Sequence[float]], *, title: str, unit: str) -> str:
    """The share of values up to each value, one line per series; a logarithmic axis of values."""
    values = []
    for name, sample in series.items():
        ordered = sorted(value for value in sample if value > 0)
        step = max(math.ceil(len(ordered) / MAX_POINTS), 1)
        values += [
            {"series": name, "value": value, "share": (index + 1) / len(ordered)}
            for index, value in enumerate(ordered)
            if index % step == 0 or index + 1 == len(ordered)
        ]
    return draw(
        values,
        title=title,
        mark={"type": "line", "interpolate": "step-after", "point": True},
        encoding={
            "x": {"field": "value", "type": "quantitative", "scale": {"type": "log"}, "title": unit},
            "y": {"field": "share", "type": "quantitative", "title": "share", "axis": {"format": "%"}},
            "color": {"field": "series", "type": "nominal", "title": None},
        },
    )


def bars(values: Sequence[dict[str, Any]], *, title: str, unit: str) -> str:
    """Bars of `value` per `place`, grouped by `series`."""
    return draw(
        values,
        title=title,
        height=max(40 * len({item["place"] for item in values}), 60),
        mark="bar",
        encoding={
            "y": {"field": "place", "type": "nominal", "title": None, "sort": None},
            "yOffset": {"field": "series", "sort": None},
            "x": {"field": "value", "type": "quantitative", "title": unit},
            "color": {"field": "series", "type": "nominal", "title": None},
        },
    )


def over_time(values: Sequence[dict[str, Any]], *, title: str, unit: str) -> str:
    """`value` over `time` in seconds, one colour per `series`."""
    step = max(math.ceil(len(values) / MAX_POINTS), 1)
    return draw(
        values[::step],
        title=title,
        mark={"type": "circle", "size": 24},
        encoding={
            "x": {"field": "time", "type": "quantitative", "title": "seconds into the run"},
            "y": {"field": "value", "type": "quantitative", "title": unit},
            "color": {"field": "series", "type": "nominal", "title": None},
        },
    )
