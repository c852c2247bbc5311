"""The charts of the report, as Vega-Lite specs with their data inside."""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import numpy as np

from analyzer.html_report.drawing import Chart
from analyzer.html_report.histogram import Histogram, is_wide
from analyzer.html_report.series import Cumulative, EngineSamples, FirstTokens
from analyzer.html_report.text import grouped, milliseconds, percent, seconds
from analyzer.html_report.thinning import Flags, Floats, Integers, runs, spots, thin_line
from analyzer.performance import Summary

Spec = dict[str, Any]

WIDE, NARROW = 1000, 380
"""Widths of the plots in pixels: across the page, and in half of it or on a phone."""
RANK_COLOURS = 8
"""Beyond this many ranks lines cannot be told apart: their range and mean are drawn."""
SPOT_PIXELS = 6
CROWD = 500
"""From this many requests on a dot's colour says how many it stands for."""
SMALLEST_RATE_SPAN = 0.02
COUNTS = ",d"
FEWEST_COUNTED = 4
"""An axis of counts reaches at least so far, so that its ticks are whole numbers."""
_LABEL_PIXELS = 7.0


def _responsive(
    name: str, title: str, description: str, note: str | None, spec: Callable[[int], Spec]
) -> Chart:
    return Chart(name, title, description, note, spec(WIDE), spec(NARROW))


def rows(**columns: Any) -> Spec:
    """Columns of equal length as Vega's inline data; NaN becomes null."""
    lists = []
    for column in columns.values():
        values = np.asarray(column)
        if values.dtype.kind == "f":
            lists.append([float(f"{value:.7g}") if isfinite(value) else None for value in values.tolist()])
        else:
            lists.append(values.tolist())
    return {"values": [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]}


def _quantitative(field: str, title: str | None, **more: Any) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, **more}


# --- the way to the final hit rate -----------------------------------------------------------------------------------


def cumulative_chart(curve: Cumulative, target: float, failed: Flags, void: Flags) -> Chart:
    """Theory and actual over the requests in final order, the target, and the requests whose theory is void."""
    count = curve.theory.size
    low, high = _rate_domain(curve, target)
    span = high - low
    if void.any():
        low -= 0.08 * span  # room for the marks below

    axis_format = ".0%" if span > 0.08 else ".1%"

    def spec(width: int) -> Spec:
        height = 300
        ends = np.array([1.0, max(count, 2)])
        # In order of drawing: where theory and actual are equal, actual lies as a thin line on the broad one of theory.
        lines: list[tuple[str, Floats, Floats, Spec]] = [
            ("theory", *_line(curve.theory, width), {"strokeWidth": 6}),
            ("actual", *_line(curve.actual, width), {"strokeWidth": 1.75}),
            ("target", ends, np.full(2, target), {"strokeWidth": 1.5, "strokeDash": [5, 4]}),
        ]
        names = ["target", "theory", "actual"]
        scale = {"domain": names, "range": [f"var(--{name})" for name in names]}
        layers: list[Spec] = [
            {
                "data": rows(request=x, rate=y),
                "mark": {"type": "line", "aria": False, "strokeJoin": "round", **style},
                "encoding": {
                    "x": _requests_axis(count, width),
                    "y": _quantitative(
                        "rate",
                        "cumulative hit rate",
                        scale={"domain": [low, high], "nice": False},
                        axis={"format": axis_format, "tickCount": 6},
                    ),
                    "color": {"datum": name, "type": "nominal", "scale": scale},
                },
            }
            for name, x, y, style in lines
        ]
        for flags, colour, what in (
            (void & ~failed, "var(--void)", "void"),
            (failed, "var(--failed)", "failed"),
        ):
            if stretches := runs(flags, width):
                layers.append(_strip(stretches, colour, what, height))
        return {"width": width, "height": height, "layer": layers}

    return _responsive(
        "cumulative",
        "Cumulative hit rate: theory and actual over the requests",
        _cumulative_description(curve, target),
        _thinned(count, "In each pixel column the first, lowest, highest and last value are drawn."),
        spec,
    )


def _requests_axis(count: int, width: int) -> Spec:
    return _quantitative(
        "request",
        "requests, in final order",
        scale={"domain": [1, max(count, 2)], "nice": False},
        axis={"format": COUNTS, "tickCount": width // 100, "tickMinStep": 1},
    )


def _line(values: Floats, width: int) -> tuple[Floats, Floats]:
    """Number of the request and value of the points to draw; those that are not known are left out."""
    known = np.flatnonzero(np.isfinite(values))
    x, y = (known + 1).astype(np.float64), values[known]
    kept = thin_line(x, y, width)
    return x[kept], y[kept]


def _rate_domain(curve: Cumulative, target: float) -> tuple[float, float]:
    """From the lowest to the highest rate, with a margin, and never so narrow that noise looks like a landscape."""
    values = np.concatenate([curve.theory, curve.actual[np.isfinite(curve.actual)], [target]])
    low, high = float(values.min()), float(values.max())
    margin = max((high - low) * 0.06, (SMALLEST_RATE_SPAN - (high - low)) / 2)
    return max(0.0, low - margin), min(1.0, high + margin)


def _strip(stretches: Sequence[tuple[int, int]], colour: str, what: str, height: int) -> Spec:
    """Marks along the lower edge, one for each stretch of requests."""
    firsts, lasts = (np.array(ends) for ends in zip(*stretches, strict=True))
    return {
        "data": rows(
            begin=firsts + 0.5,
            end=lasts + 1.5,
            tip=[
                f"{what}: request {grouped(first + 1)}"
                if first == last
                else f"{what}: requests {grouped(first + 1)} to {grouped(last + 1)}"
                for first, last in stretches
            ],
        ),
        "mark": {
            "type": "rect",
            "fill": colour,
            "stroke": colour,
            "strokeWidth": 1.5,
            "y": height - (14 if what == "failed" else 7),
            "y2": height,
        },
        "encoding": {
            "x": _quantitative("begin", "requests, in final order"),
            "x2": {"field": "end"},
            "description": {"field": "tip"},
        },
    }


def _cumulative_description(curve: Cumulative, target: float) -> str:
    known = curve.actual[np.isfinite(curve.actual)]
    actual = f"actual ends at {percent(float(known[-1]))}" if known.size else "actual is not known"
    return (
        f"Over {grouped(curve.theory.size)} requests theory ends at {percent(float(curve.theory[-1]))}, {actual}; "
        f"the target is {percent(target)}."
    )


def ahead_chart(curve: Cumulative) -> Chart | None:
    """Cumulative hit tokens, actual minus theory; None where they are equal all the way or not known."""
    known = np.isfinite(curve.actual)
    if not (curve.ahead[known] != 0).any():
        return None

    def spec(width: int) -> Spec:
        x, y = _line(np.where(known, curve.ahead, np.nan), width)
        return {
            "width": width,
            "height": 130,
            "data": rows(request=x, tokens=y),
            "mark": {"type": "line", "interpolate": "step-after", "aria": False, "stroke": "var(--actual)"},
            "encoding": {
                "x": _requests_axis(curve.theory.size, width),
                "y": _quantitative("tokens", "tokens", axis={"format": COUNTS, "tickCount": 4}),
            },
        }

    last = int(curve.ahead[known][-1])
    return _responsive(
        "ahead",
        "Hit tokens, actual minus theory, up to each request",
        f"Ends at {last:+,} tokens. A step down is a request that hit less than planned, or that failed.",
        None,
        spec,
    )


# --- what a hit is worth ---------------------------------------------------------------------------------------------


def first_token_chart(points: FirstTokens) -> Chart | None:
    """TTFT against the share of the prompt that was cached; None where no request has both."""
    if not points.share.size:
        return None
    unit, factor = _unit(float(points.ttft_s.max()))
    high, median = float(points.ttft_s.max()), float(np.median(points.ttft_s))
    logarithmic = is_wide(median, high) and points.ttft_s.min() > 0
    heights = np.log(points.ttft_s) if logarithmic else points.ttft_s
    middles, medians = _medians(points)
    x = _quantitative(
        "share",
        "share of the prompt found in the cache",
        scale={"zero": False},
        axis={"format": ".0%", "tickMinStep": 0.01},
    )
    scale, axis = _time_axis(float(points.ttft_s.min()) * factor, high * factor, logarithmic=logarithmic)
    y = _quantitative("ttft", f"TTFT, {unit}", scale=scale, axis=axis)
    line = {
        "data": rows(share=middles, ttft=medians * factor),
        "mark": {"type": "line", "aria": False, "stroke": "var(--s2)", "strokeWidth": 2.5},
        "encoding": {"x": x, "y": y},
    }

    crowded = points.share.size > CROWD

    def spec(width: int) -> Spec:
        height = 280
        found = spots(points.share, heights, width // SPOT_PIXELS, height // SPOT_PIXELS)
        # The most crowded spots are drawn last.
        order = np.argsort(found.counts, kind="stable")
        counts = found.counts[order]
        share, ttft = points.share[found.positions[order]], points.ttft_s[found.positions[order]]
        shade: Spec = {"value": 0.75}
        if crowded:
            shade = {
                "field": "requests",
                "type": "quantitative",
                "scale": {"type": "log", "domain": [1, int(counts[-1])], "range": [0.4, 1]},
                "legend": None,
            }
        dots = {
            "data": rows(share=share, ttft=ttft * factor, requests=counts, tip=_tips(share, ttft, counts)),
            "mark": {"type": "point", "filled": True, "size": 26, "fill": "var(--s1)"},
            "encoding": {
                "x": {**x, "axis": {**x["axis"], "tickCount": width // 100}},
                "y": y,
                "opacity": shade,
                "description": {"field": "tip"},
            },
        }
        return {"width": width, "height": height, "layer": [dots, line] if len(middles) > 2 else [dots]}

    joined = " The line joins the medians of equal parts of the range." if len(middles) > 2 else ""
    left_out = (
        f" {grouped(points.left_out)} requests are not drawn: they have no TTFT or no cached tokens."
        if points.left_out
        else ""
    )
    return _responsive(
        "ttft-by-share",
        "TTFT against cached share",
        f"{grouped(points.share.size)} requests; TTFT is {seconds(median)} in the median and at most {seconds(high)}."
        + joined
        + left_out,
        f"One dot per spot of {SPOT_PIXELS} pixels: its slowest request"
        + (", the stronger its colour the more requests." if crowded else "."),
        spec,
    )


def _tips(share: Floats, ttft: Floats, counts: Integers) -> list[str]:
    return [
        f"{percent(s)} cached, TTFT {seconds(t)}" + (f", {grouped(n)} requests" if n > 1 else "")
        for s, t, n in zip(share.tolist(), ttft.tolist(), counts.tolist(), strict=True)
    ]


def _medians(points: FirstTokens, parts: int = 12, fewest: int = 5) -> tuple[Floats, Floats]:
    """Median TTFT in equal parts of the range of shares; parts with fewer than `fewest` requests are left out."""
    low, high = float(points.share.min()), float(points.share.max())
    if high <= low:
        return np.zeros(0), np.zeros(0)
    part = np.minimum(((points.share - low) / (high - low) * parts).astype(np.int64), parts - 1)
    kept = [number for number in range(parts) if (part == number).sum() >= fewest]
    shares = [float(np.median(points.share[part == number])) for number in kept]
    return np.array(shares), np.array([float(np.median(points.ttft_s[part == number])) for number in kept])


# --- latencies -------------------------------------------------------------------------------------------------------


def latency_chart(name: str, summary: Summary, found: Histogram) -> Chart:
    """A histogram (values in ms) with lines at the median, the 90th and the 99th percentile."""
    unit, factor = _unit(summary.maximum / 1e3)
    factor /= 1e3
    tips = [
        f"{milliseconds(low)} to {milliseconds(high)}: {grouped(count)}"
        for low, high, count in zip(found.edges[:-1], found.edges[1:], found.counts.tolist(), strict=True)
    ]
    marked = [("p50", summary.median), ("p90", summary.p90), ("p99", summary.p99)]
    low, high = float(found.edges[0]) * factor, float(found.edges[-1]) * factor
    scale, axis = _time_axis(low, high, logarithmic=found.logarithmic)
    x = _quantitative(
        "low", f"{name}, {unit}", scale={**scale, "domain": [low, high], "zero": False}, axis=axis
    )
    bars = {
        "data": rows(
            low=found.edges[:-1] * factor, high=found.edges[1:] * factor, count=found.counts, tip=tips
        ),
        "transform": [{"filter": "datum.count > 0"}],
        "mark": {"type": "rect", "fill": "var(--s1)", "stroke": "var(--surface)", "strokeWidth": 0.5},
        "encoding": {
            "x": x,
            "x2": {"field": "high"},
            "y": _quantitative("count", "values", axis={"format": COUNTS, "tickCount": 4, "tickMinStep": 1}),
            "y2": {"datum": 0},
            "description": {"field": "tip"},
        },
    }
    lines = [
        {
            "data": rows(at=[value * factor], what=[what]),
            "encoding": {"x": {**x, "field": "at"}},
            "layer": [
                {"mark": {"type": "rule", "aria": False, "stroke": "var(--s2)", "strokeWidth": 1.5}},
                {
                    # Above one another in turn: two percentiles may be the same.
                    "mark": {
                        "type": "text",
                        "aria": False,
                        "fill": "var(--text)",
                        "fontSize": 11,
                        "y": -7 - 11 * (number % 2),
                    },
                    "encoding": {"text": {"field": "what"}},
                },
            ],
        }
        for number, (what, value) in enumerate(marked)
    ]
    return Chart(
        name.lower(),
        name,
        f"{grouped(summary.count)} values: median {milliseconds(summary.median)}, p99 {milliseconds(summary.p99)}, "
        f"longest {milliseconds(summary.maximum)}.",
        f"The first bar holds all that is shorter, down to {milliseconds(summary.minimum)}."
        if summary.minimum < found.edges[0]
        else None,
        {"width": NARROW, "height": 150, "layer": [bars, *lines]},
    )


def _time_axis(low: float, high: float, *, logarithmic: bool) -> tuple[Spec, Spec]:
    """Scale and axis. A logarithmic axis gets its ticks from us: Vega draws a line for every digit of every decade."""
    if not logarithmic:
        return {"nice": False, "zero": True}, {"tickCount": 6}
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= 8:
            break
    return {"type": "log", "nice": False}, {"values": ticks, "format": "~r" if low < 1e4 else ",~r"}


def _unit(longest_s: float) -> tuple[str, float]:
    return ("ms", 1000.0) if longest_s < 2 else ("s", 1.0)


# --- the engine over time --------------------------------------------------------------------------------------------


def engine_chart(
    samples: EngineSamples, load_began: float, phases: Sequence[tuple[str, float, float]]
) -> Chart | None:
    """KV usage, running and waiting requests per rank, with the phases behind; None where nothing was sampled.

    `phases`: name, begin and end in seconds since the run began; `load_began` likewise.
    """
    if not samples.rank.size:
        return None
    end = max(float(samples.elapsed_seconds.max()) + load_began, *(finish for _, _, finish in phases))
    panels = [
        ("KV cache usage", samples.kv_cache_usage, ".0%"),
        ("requests running", samples.running, COUNTS),
        ("requests waiting", samples.waiting, COUNTS),
    ]
    known = [panel for panel in panels if np.isfinite(panel[1]).any()]
    if not known:
        return None
    peak = samples.kv_cache_usage[np.isfinite(samples.kv_cache_usage)]
    waiting = samples.waiting[np.isfinite(samples.waiting)]

    def spec(width: int) -> Spec:
        height = 110
        stacked = [
            _panel(
                samples,
                values,
                title,
                axis,
                load_began,
                end,
                phases,
                width,
                height,
                first=number == 0,
                last=number == len(known) - 1,
            )
            for number, (title, values, axis) in enumerate(known)
        ]
        return {
            "vconcat": stacked,
            "spacing": 14,
            "resolve": {"scale": {"color": "shared", "strokeDash": "shared"}},
        }

    count = np.unique(samples.elapsed_seconds).size
    ranks = len(samples.ranks)
    said = [f"{grouped(count)} samples of {ranks} {'ranks' if ranks > 1 else 'rank'} while the load ran"]
    if peak.size:
        said.append(f"KV usage at most {percent(float(peak.max()))}")
    if waiting.size:
        said.append(f"at most {grouped(int(waiting.max()))} waiting on a rank")
    missing = [title for title, values, _ in panels if not np.isfinite(values).any()]
    notes = []
    if ranks > RANK_COLOURS:
        notes.append(f"{ranks} ranks: the mean, and the range from the lowest to the highest.")
    if missing:
        notes.append(f"Not known, because the engine does not report: {', '.join(missing)}.")
    thinned = _thinned(count, "In each pixel column the first, lowest, highest and last sample are drawn.")
    if thinned:
        notes.append(thinned)
    return _responsive(
        "engine",
        "KV usage and queue per rank over time",
        "; ".join(said) + ".",
        " ".join(notes) or None,
        spec,
    )


def _panel(
    samples: EngineSamples,
    values: Floats,
    title: str,
    axis_format: str,
    load_began: float,
    end: float,
    phases: Sequence[tuple[str, float, float]],
    width: int,
    height: int,
    *,
    first: bool,
    last: bool,
) -> Spec:
    x: Spec = {"scale": {"domain": [0, end], "nice": False}, "type": "quantitative"}
    x["axis"] = {"title": "seconds since the run began", "tickCount": width // 100}
    if not last:
        x["axis"] = {"title": None, "labels": False, "ticks": False}
    layers = [_phase_bands(phases, x), *([_phase_names(phases, end, width)] if first else [])]
    peak = float(np.nanmax(values))
    highest = max(peak, FEWEST_COUNTED) if axis_format == COUNTS else max(peak, 1e-3)
    y = _quantitative(
        "value", title, scale={"domain": [0, highest]}, axis={"format": axis_format, "tickCount": 4}
    )
    draw_lines = _lines_of_ranks if len(samples.ranks) <= RANK_COLOURS else _range_of_ranks
    layers += draw_lines(samples, values, load_began, width, x, y)
    return {"width": width, "height": height, "layer": layers}


def _lines_of_ranks(
    samples: EngineSamples, values: Floats, load_began: float, width: int, x: Spec, y: Spec
) -> list[Spec]:
    at, value, names = [], [], []
    for rank in samples.ranks:
        known = samples.of_rank(rank) & np.isfinite(values)
        time, height = samples.elapsed_seconds[known] + load_began, values[known]
        kept = thin_line(time, height, width)
        at.append(time[kept])
        value.append(height[kept])
        names.append(np.full(kept.size, f"rank {rank}"))
    domain = [f"rank {rank}" for rank in samples.ranks]
    dashes = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [1, 0], [6, 3], [2, 2], [8, 3, 2, 3]]
    by_rank: Spec = {"field": "rank", "type": "nominal", "legend": {"symbolType": "stroke"}}
    colours = [f"var(--s{number + 1})" for number in range(len(domain))]
    return [
        {
            "data": rows(at=np.concatenate(at), value=np.concatenate(value), rank=np.concatenate(names)),
            "mark": {
                "type": "line",
                "aria": False,
                "strokeWidth": 1.75,
                "point": {"size": 14, "aria": False} if sum(map(len, at)) <= 40 * len(domain) else False,
            },
            "encoding": {
                "x": {"field": "at", **x},
                "y": y,
                "color": {**by_rank, "scale": {"domain": domain, "range": colours}},
                "strokeDash": {**by_rank, "scale": {"domain": domain, "range": dashes[: len(domain)]}},
            },
        }
    ]


def _range_of_ranks(
    samples: EngineSamples, values: Floats, load_began: float, width: int, x: Spec, y: Spec
) -> list[Spec]:
    known = np.isfinite(values)
    times, sample = np.unique(samples.elapsed_seconds[known], return_inverse=True)
    lowest, highest = np.full(times.size, np.inf), np.full(times.size, -np.inf)
    np.minimum.at(lowest, sample, values[known])
    np.maximum.at(highest, sample, values[known])
    mean = np.bincount(sample, values[known]) / np.bincount(sample)
    kept = np.unique(np.concatenate([thin_line(times, line, width) for line in (lowest, highest, mean)]))
    data = rows(at=times[kept] + load_began, low=lowest[kept], high=highest[kept], value=mean[kept])
    return [
        {
            "data": data,
            "mark": {"type": "area", "aria": False, "fill": "var(--s1)", "opacity": 0.25},
            "encoding": {"x": {"field": "at", **x}, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "data": data,
            "mark": {"type": "line", "aria": False, "stroke": "var(--s1)", "strokeWidth": 1.75},
            "encoding": {"x": {"field": "at", **x}, "y": y},
        },
    ]


def _phase_bands(phases: Sequence[tuple[str, float, float]], x: Spec) -> Spec:
    return {
        "data": {
            "values": [
                {
                    "begin": begin,
                    "end": end,
                    "band": number % 2,
                    "tip": f"{name}: {seconds(end - begin)}",
                }
                for number, (name, begin, end) in enumerate(phases)
            ]
        },
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "begin", **x},
            "x2": {"field": "end"},
            "fill": {
                "field": "band",
                "type": "nominal",
                "scale": {"domain": [0, 1], "range": ["var(--band-a)", "var(--band-b)"]},
                "legend": None,
            },
            "description": {"field": "tip"},
        },
    }


def _phase_names(phases: Sequence[tuple[str, float, float]], end: float, width: int) -> Spec:
    """Names above the bands that are wide enough for them; the others show theirs when pointed at."""
    named = [
        {"middle": (begin + finish) / 2, "name": name}
        for name, begin, finish in phases
        if (finish - begin) / end * width >= len(name) * _LABEL_PIXELS
    ]
    return {
        "data": {"values": named},
        "mark": {"type": "text", "aria": False, "fill": "var(--muted)", "fontSize": 11, "y": -7},
        "encoding": {"x": {"field": "middle", "type": "quantitative"}, "text": {"field": "name"}},
    }


def _thinned(count: int, how: str) -> str | None:
    return how if count > 4 * NARROW else None
