"""Writes the dashboards: `python grafana/generate.py`. Plain data in, JSON out; a test keeps the files in step.

Queries read the recording rules of prometheus/rules/engine.yml, with the labels run_id, measurement, model,
engine_kind and rank, and the analyzer's metrics (hitlab_run_*).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DASHBOARDS = Path(__file__).resolve().parent / "dashboards"

PROMETHEUS = {"type": "prometheus", "uid": "hitlab-prometheus"}
GRAFANA = {"type": "grafana", "uid": "-- Grafana --"}

WIDTH = 24
"""Columns of Grafana's grid."""
SCHEMA_VERSION = 39  # Grafana 11
RATE, SECONDS, POINTS, TOKENS_PER_SECOND = "percentunit", "s", "suffix: pp", "si:tok/s"

Document = dict[str, Any]

# What the variables choose: {sel} of an engine's series, {rank} with the rank, {run} of a run's.
SELECTORS = {
    "sel": 'run_id=~"$run", model=~"$model", engine_kind=~"$engine"',
    "rank": 'run_id=~"$run", model=~"$model", engine_kind=~"$engine", rank=~"$rank"',
    "run": 'run_id=~"$run"',
}
# A run's series do not say which engine it was; hitlab_run_info does.
OF_THOSE = 'and on (run_id, measurement) hitlab_run_info{model=~"$model", engine_kind=~"$engine"}'


def query(expression: str, legend: str = "", *, table: bool = False) -> Document:
    """A query; `<sel>`, `<rank>` and `<run>` stand for what the variables choose.

    Args:
        table: the newest value of every series, as rows.
    """
    for name, selector in SELECTORS.items():
        expression = expression.replace(f"<{name}>", f"{{{selector}}}")
    found: Document = {"datasource": PROMETHEUS, "expr": expression, "legendFormat": legend or "__auto"}
    return found | ({"format": "table", "instant": True, "range": False} if table else {"range": True})


def panel(
    kind: str,
    title: str,
    description: str,
    unit: str,
    queries: Sequence[Document],
    *,
    width: int,
    height: int = 8,
    options: Document | None = None,
    defaults: Document | None = None,
    custom: Document | None = None,
    thresholds: Sequence[tuple[float | None, str]] = ((None, "blue"),),
    overrides: Sequence[Document] = (),
    transformations: Sequence[Document] = (),
) -> Document:
    """A panel without its place. `thresholds`: from which value on which colour; named colours suit light and dark."""
    steps = [{"value": value, "color": colour} for value, colour in thresholds]
    field: Document = {
        "unit": unit,
        "thresholds": {"mode": "absolute", "steps": steps},
        **(defaults or {}),
    }
    if custom:
        field["custom"] = custom
    found: Document = {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": PROMETHEUS,
        "targets": [{"refId": chr(ord("A") + number), **item} for number, item in enumerate(queries)],
        "fieldConfig": {"defaults": field, "overrides": list(overrides)},
        "options": options or {},
        "gridPos": {"w": width, "h": height},
    }
    return found | ({"transformations": list(transformations)} if transformations else {})


def stat(title: str, description: str, unit: str, queries: Sequence[Document], **more: Any) -> Document:
    options = {
        "colorMode": "value",
        "graphMode": "area",
        "textMode": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"]},
    }
    options |= more.pop("options", {})
    return panel(
        "stat", title, description, unit, queries, **{"width": 4, "height": 5, **more}, options=options
    )


def curves(title: str, description: str, unit: str, queries: Sequence[Document], **more: Any) -> Document:
    """Values over time, with the newest in the legend."""
    stacked = more.pop("stacked", False)
    custom = {"lineWidth": 2, "fillOpacity": 30 if stacked else 5, "spanNulls": False, "showPoints": "auto"}
    if stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    defaults = {"color": {"mode": "palette-classic"}, "min": 0} | more.pop("defaults", {})
    options = {
        "legend": {
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
            "calcs": ["lastNotNull"],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel(
        "timeseries",
        title,
        description,
        unit,
        queries,
        **{"width": 12, "height": 9, **more},
        custom=custom,
        defaults=defaults,
        options=options,
    )


def bars(title: str, description: str, unit: str, queries: Sequence[Document], **more: Any) -> Document:
    """One bar per series, its newest value."""
    options = {
        "orientation": "horizontal",
        "displayMode": "basic",
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "showUnfilled": True,
    }
    return panel("bargauge", title, description, unit, queries, **{"width": 8, **more}, options=options)


def dashed(*names: str) -> list[Document]:
    """Targets and theory are not measured, and look like it."""
    return [
        {
            "matcher": {"id": "byRegexp", "options": f"/{name}/"},
            "properties": [
                {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
                {"id": "custom.fillOpacity", "value": 0},
            ],
        }
        for name in names
    ]


def row(title: str) -> Document:
    return {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"w": WIDTH, "h": 1}}


def placed(panels: Sequence[Document]) -> list[Document]:
    """The panels from left to right, each with its place and number."""
    x = y = height = 0
    found = []
    for number, item in enumerate(panels, start=1):
        size = item["gridPos"]
        if x + size["w"] > WIDTH:
            x, y, height = 0, y + height, 0
        found.append({"id": number, **item, "gridPos": {"x": x, "y": y, **size}})
        x, height = x + size["w"], max(height, size["h"])
    return found


def variable(name: str, label: str, description: str, definition: str, *, sort: int = 1) -> Document:
    return {
        "type": "query",
        "name": name,
        "label": label,
        "description": description,
        "datasource": PROMETHEUS,
        "query": {"query": definition, "refId": f"Variable-{name}"},
        "refresh": 2,  # with the time range, so that a new run is there without a click
        "sort": sort,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"], "selected": True},
        "hide": 0,
    }


def variables(*, rank: bool) -> list[Document]:
    info = "hitlab_run_info"
    found = [
        variable(
            "engine",
            "Engine",
            "Kind of engine: simulator, vllm or external.",
            f"label_values({info}, engine_kind)",
        ),
        variable(
            "model", "Model", "Model as served.", f'label_values({info}{{engine_kind=~"$engine"}}, model)'
        ),
        variable(
            "run",
            "Run",
            "Run id; prepare gives one to each set of data.",
            f'label_values({info}{{engine_kind=~"$engine", model=~"$model"}}, run_id)',
            sort=2,
        ),
    ]
    if rank:
        series = 'rank:prefix_cache_query_tokens:total{run_id=~"$run"}'
        found.append(variable("rank", "Rank", "Data-parallel rank.", f"label_values({series}, rank)", sort=3))
    return found


def annotations() -> list[Document]:
    """What `hitlab watch` writes, by kind; runs are told apart by their time."""
    layers = (
        ("Phases", "phase", "blue"),
        ("Warnings", "warning", "orange"),
        ("Verdicts", "verdict", "green"),
    )
    return [
        {
            "name": name,
            "datasource": GRAFANA,
            "enable": True,
            "hide": False,
            "iconColor": colour,
            "target": {"type": "tags", "tags": ["hitlab", kind], "matchAny": False, "limit": 500},
        }
        for name, kind, colour in layers
    ]


def dashboard(
    uid: str,
    title: str,
    description: str,
    panels: Sequence[Document],
    *,
    rank: bool,
    since: str,
    refresh: str,
) -> Document:
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["hitlab"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": since, "to": "now"},
        "refresh": refresh,
        "timepicker": {"refresh_intervals": ["1s", "5s", "10s", "30s", "1m"]},
        "links": [
            {
                "title": "HitLab dashboards",
                "type": "dashboards",
                "tags": ["hitlab"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": False,
                "targetBlank": False,
                "icon": "external link",
                "tooltip": "",
                "url": "",
            },
        ],
        "annotations": {"list": annotations()},
        "templating": {"list": variables(rank=rank)},
        "panels": placed(panels),
    }


BY_RUN, BY_RANK = "{{run_id}}", "{{run_id}} rank {{rank}}"


def per_run(series: str) -> str:
    """Of measurements of one run, which follow one another, one curve."""
    return f"max by (run_id) ({series}<sel>)"


def per_rank(series: str) -> str:
    return f"max by (run_id, rank) ({series}<rank>)"


def quantiles(series: str) -> list[Document]:
    return [query(f"max by (run_id, quantile) ({series}<sel>)", "{{run_id}} p{{quantile}}")]


def live_run() -> Document:
    panels = [
        stat(
            "Hit rate so far",
            "Hit tokens over query tokens since the load began, from the engine's counters. Warmup and earlier traffic "
            "are not in it, so it ends at the number of the verdict.",
            RATE,
            [query(per_run("run:prefix_cache_hit_ratio:formal"), BY_RUN)],
            defaults={"decimals": 2, "min": 0, "max": 1},
        ),
        stat(
            "Theory",
            "The hit rate that the data was built for.",
            RATE,
            [query(per_run("run:theoretical_hit_ratio:live"), BY_RUN)],
            defaults={"decimals": 2, "min": 0, "max": 1},
        ),
        stat(
            "Target",
            "The hit rate that was asked for.",
            RATE,
            [query(per_run("run:target_hit_ratio:live"), BY_RUN)],
            defaults={"decimals": 2, "min": 0, "max": 1},
        ),
        stat(
            "Actual minus theory",
            "In percentage points, so far. Theory is about the whole load: on the way there a difference means nothing "
            "yet.",
            POINTS,
            [
                query(
                    "100 * (max by (run_id) (run:prefix_cache_hit_ratio:formal<sel>) "
                    "- max by (run_id) (run:theoretical_hit_ratio:live<sel>))",
                    BY_RUN,
                )
            ],
            defaults={"decimals": 2},
            thresholds=((None, "orange"), (-0.5, "green"), (0.5, "orange")),
        ),
        stat(
            "Phase",
            "What the run is doing. Empty when no run is going on.",
            "none",
            [query("max by (run_id, phase) (hitlab_run_phase<run>)", "{{phase}}")],
            options={"textMode": "name", "graphMode": "none"},
        ),
        stat(
            "Engines out of reach",
            "Engines that Prometheus has been told of and cannot scrape: gone, or listening on a loopback address of "
            "the host. Dashboards show nothing of them; results do not depend on it.",
            "none",
            [query('sum(up{job="engine"} == bool 0) or vector(0)', "out of reach")],
            options={"graphMode": "none"},
            thresholds=((None, "green"), (1, "red")),
        ),
        row("Hit rate"),
        curves(
            "Hit rate since the load began",
            "Cumulative, all ranks, beside theory and target. It climbs towards theory while the load goes on.",
            RATE,
            [
                query(per_run("run:prefix_cache_hit_ratio:formal"), f"{BY_RUN} actual"),
                query(per_run("run:theoretical_hit_ratio:live"), f"{BY_RUN} theory"),
                query(per_run("run:target_hit_ratio:live"), f"{BY_RUN} target"),
            ],
            defaults={"max": 1},
            overrides=dashed("theory$", "target$"),
        ),
        curves(
            "Hit rate since the load began, per rank",
            "Cumulative, beside the rank's theory (the whole's, where the service chooses the ranks) and the target.",
            RATE,
            [
                query(per_rank("rank:prefix_cache_hit_ratio:formal"), f"{BY_RANK} actual"),
                query(per_rank("rank:theoretical_hit_ratio:live"), f"{BY_RANK} theory"),
                query(per_run("run:target_hit_ratio:live"), f"{BY_RUN} target"),
            ],
            defaults={"max": 1},
            overrides=dashed("theory$", "target$"),
        ),
        curves(
            "Hit rate of the last minute, per rank",
            "Over a sliding window of one minute: what hits now. Warmup is in it.",
            RATE,
            [
                query(per_rank("rank:prefix_cache_hit_ratio:rate1m"), BY_RANK),
                query(per_run("run:prefix_cache_hit_ratio:rate1m"), f"{BY_RUN} all"),
            ],
            defaults={"max": 1},
        ),
        curves(
            "Hit rate of the last five minutes, per rank",
            "Over a sliding window of five minutes: smoother, and slower to follow.",
            RATE,
            [
                query(per_rank("rank:prefix_cache_hit_ratio:rate5m"), BY_RANK),
                query(per_run("run:prefix_cache_hit_ratio:rate5m"), f"{BY_RUN} all"),
            ],
            defaults={"max": 1},
        ),
        row("Load"),
        curves(
            "KV cache in use, per rank",
            "Share of the rank's blocks that running requests hold. At 100 % requests wait or are preempted, and cached "
            "prefixes are evicted.",
            RATE,
            [query(per_rank("rank:kv_cache_usage_ratio:max"), BY_RANK)],
            defaults={"max": 1},
            thresholds=((None, "green"), (0.9, "orange"), (0.98, "red")),
        ),
        curves(
            "Requests running and waiting, per rank",
            "Running: in the engine's batch. Waiting: admitted by the server, not yet scheduled.",
            "none",
            [
                query(per_rank("rank:requests_running:sum"), f"{BY_RANK} running"),
                query(per_rank("rank:requests_waiting:sum"), f"{BY_RANK} waiting"),
            ],
            overrides=dashed("waiting$"),
        ),
        curves(
            "Prompt tokens by source",
            "Computed, found in the rank's own prefix cache, or fetched by a KV connector; over the last minute. Engines "
            "before vLLM 0.16 do not report.",
            TOKENS_PER_SECOND,
            [query("sum by (run_id, source) (rank:prompt_tokens:rate1m<rank>)", f"{BY_RUN} {{{{source}}}}")],
            stacked=True,
        ),
        curves(
            "Generated tokens, per rank",
            "Output tokens per second, over the last minute.",
            TOKENS_PER_SECOND,
            [query(per_rank("rank:generation_tokens:rate1m"), BY_RANK)],
        ),
        row("Latency and errors"),
        curves(
            "Time to first token",
            "TTFT percentiles of the last minute, from the engine's histogram: interpolated within its buckets.",
            SECONDS,
            quantiles("run:ttft_seconds:quantile1m"),
            width=8,
        ),
        curves(
            "Time per output token",
            "TPOT percentiles of the last minute: one value per request, its mean. From the engine's histogram.",
            SECONDS,
            quantiles("run:tpot_seconds:quantile1m"),
            width=8,
        ),
        curves(
            "Inter-token latency",
            "ITL percentiles of the last minute: every gap between two tokens. From the engine's histogram.",
            SECONDS,
            quantiles("run:itl_seconds:quantile1m"),
            width=8,
        ),
        curves(
            "Requests that ended badly",
            "Aborted (the client went away, or a timeout) and failed, per second over the last minute, as the engine "
            "counts them.",
            "reqps",
            [
                query(
                    "sum by (run_id, finished_reason) "
                    '(rate(vllm:request_success_total{run_id=~"$run", model=~"$model", engine_kind=~"$engine", '
                    'rank=~"$rank", finished_reason=~"abort|error"}[1m]))',
                    f"{BY_RUN} {{{{finished_reason}}}}",
                )
            ],
            thresholds=((None, "green"), (0.01, "red")),
            width=WIDTH,
            height=6,
        ),
    ]
    return dashboard(
        "hitlab-live-run",
        "HitLab: live run",
        "A run while it goes on: hit rate beside theory and target, load, latency. Phases are marked.",
        panels,
        rank=True,
        since="now-15m",
        refresh="5s",
    )


def of_run(series: str, more: str = "") -> str:
    """A series of the chosen runs, a value per measurement."""
    selected = f'{{run_id=~"$run"{more}}}'
    return f"max by (run_id, measurement, scenario) (hitlab_run_{series}{selected} {OF_THOSE})"


# Column title -> expression, unit, thresholds.
HISTORY: Mapping[str, tuple[str, str, Sequence[tuple[float | None, str]]]] = {
    "Started": (f"1000 * {of_run('start_time_seconds')}", "dateTimeAsIso", ()),
    "Target": (of_run("target_hit_rate"), RATE, ()),
    "Theory": (of_run("theoretical_hit_rate"), RATE, ()),
    "Actual": (of_run("actual_hit_rate"), RATE, ()),
    "Theory - target": (of_run("theory_target_difference_percentage_points"), POINTS, ()),
    "Actual - theory": (
        of_run("actual_theory_difference_percentage_points"),
        POINTS,
        ((None, "red"), (-0.5, "green"), (0.5, "red")),
    ),
    "TTFT p50": (of_run("ttft_seconds", ', quantile="0.5"'), SECONDS, ()),
    "TTFT p99": (of_run("ttft_seconds", ', quantile="0.99"'), SECONDS, ()),
    "Input": (of_run("tokens_per_second", ', direction="input"'), TOKENS_PER_SECOND, ()),
    "Output": (of_run("tokens_per_second", ', direction="output"'), TOKENS_PER_SECOND, ()),
    "Failed": (of_run("requests", ', outcome="failed"'), "none", ((None, "green"), (1, "red"))),
    "Warnings": (of_run("warnings"), "none", ((None, "green"), (1, "orange"))),
}
INFO = (
    "max by (run_id, measurement, scenario, mode, engine_kind, engine_version, model, status, verdict) "
    '(hitlab_run_info{run_id=~"$run", model=~"$model", engine_kind=~"$engine"})'
)


def history_table() -> Document:
    """One row per measurement: the labels of hitlab_run_info, then a column per query."""
    queries = [query(INFO, table=True), *(query(item[0], table=True) for item in HISTORY.values())]
    columns = {f"Value #{chr(ord('B') + number)}": title for number, title in enumerate(HISTORY)}
    renamed = {
        **columns,
        "run_id": "Run",
        "measurement": "Measurement",
        "scenario": "Scenario",
        "mode": "Mode",
        "engine_kind": "Engine",
        "engine_version": "Version",
        "model": "Model",
        "status": "Status",
        "verdict": "Verdict",
    }
    order = [
        *("Value #B", "scenario", "run_id", "measurement", "verdict", "status", *list(columns)[1:]),
        *("mode", "engine_kind", "engine_version", "model"),
    ]
    overrides: list[Document] = []
    for title, (_, unit, thresholds) in HISTORY.items():
        properties: list[Document] = [{"id": "unit", "value": unit}]
        if unit == RATE:
            properties.append({"id": "decimals", "value": 2})
        if thresholds:
            steps = [{"value": value, "color": colour} for value, colour in thresholds]
            properties += [
                {"id": "thresholds", "value": {"mode": "absolute", "steps": steps}},
                {"id": "custom.cellOptions", "value": {"type": "color-text"}},
            ]
        overrides.append({"matcher": {"id": "byName", "options": title}, "properties": properties})
    live = "/d/hitlab-live-run?var-run=${__value.text}&from=${__data.fields.Started.numeric}&to=now"
    overrides.append(
        {
            "matcher": {"id": "byName", "options": "Run"},
            "properties": [{"id": "links", "value": [{"title": "Curves of this run", "url": live}]}],
        }
    )
    verdicts = {
        "PASS": {"color": "green", "index": 0},
        "PASS_WITH_WARNING": {"color": "orange", "index": 1},
        "failed": {"color": "red", "index": 2},
        "interrupted": {"color": "purple", "index": 3},
        "unknown": {"color": "text", "index": 4},
    }
    overrides.append(
        {
            "matcher": {"id": "byName", "options": "Verdict"},
            "properties": [
                {"id": "mappings", "value": [{"type": "value", "options": verdicts}]},
                {"id": "custom.cellOptions", "value": {"type": "color-text"}},
            ],
        }
    )
    return panel(
        "table",
        "Runs",
        "The newest fifty measurements. Target: asked for. Theory: built for. Actual: counted by the engine. Latencies "
        "are the client's; throughput is tokens of answered requests over the time of the load.",
        "none",
        queries,
        width=WIDTH,
        height=14,
        options={"showHeader": True, "sortBy": [{"displayName": "Started", "desc": True}]},
        custom={"align": "auto", "filterable": True},
        overrides=overrides,
        transformations=[
            {"id": "merge", "options": {}},
            {
                "id": "organize",
                "options": {
                    "excludeByName": {"Time": True, "Value #A": True},
                    "indexByName": {name: number for number, name in enumerate(order)},
                    "renameByName": renamed,
                },
            },
        ],
    )


def run_history() -> Document:
    name = "{{scenario}} {{measurement}}"
    panels = [
        history_table(),
        bars(
            "Actual minus theory",
            "In percentage points; 0 is what a cache that is large enough and undisturbed gives, to the token.",
            POINTS,
            [query(of_run("actual_theory_difference_percentage_points"), name)],
            defaults={"decimals": 2},
            thresholds=((None, "red"), (-0.5, "green"), (0.5, "red")),
        ),
        bars(
            "Time to first token, median",
            "As the client measured it.",
            SECONDS,
            [query(of_run("ttft_seconds", ', quantile="0.5"'), name)],
            defaults={"min": 0},
        ),
        bars(
            "Input tokens per second",
            "Of answered requests, over the time of the load.",
            TOKENS_PER_SECOND,
            [query(of_run("tokens_per_second", ', direction="input"'), name)],
            defaults={"min": 0},
        ),
        panel(
            "table",
            "Warnings",
            "What the analyses warn of; the reports say what each means and what to do.",
            "none",
            [
                query(
                    f'max by (run_id, measurement, code) (hitlab_run_warning{{run_id=~"$run"}} {OF_THOSE})',
                    table=True,
                )
            ],
            width=WIDTH,
            options={"showHeader": True},
            custom={"align": "auto", "filterable": True},
            transformations=[
                {
                    "id": "organize",
                    "options": {
                        "excludeByName": {"Time": True},
                        "indexByName": {"run_id": 0, "measurement": 1, "code": 2, "Value": 3},
                        "renameByName": {
                            "run_id": "Run",
                            "measurement": "Measurement",
                            "code": "Warning",
                            "Value": "Times",
                        },
                    },
                }
            ],
        ),
    ]
    return dashboard(
        "hitlab-run-history",
        "HitLab: run history",
        "The results of finished runs side by side.",
        panels,
        rank=False,
        since="now-24h",
        refresh="30s",
    )


def engine_health() -> Document:
    scraped = '{job="engine", run_id=~"$run", model=~"$model", engine_kind=~"$engine"}'
    panels = [
        stat(
            "Engines scraped",
            "How many metrics pages Prometheus reads right now.",
            "none",
            [query(f"sum(up{scraped})", "pages")],
            width=6,
        ),
        stat(
            "Preemptions of the last minute",
            "Requests that lost their KV cache to others and have to be computed again. Their hits and latencies are not "
            "those that the plan had in mind.",
            "none",
            [query("sum(rank:preemptions:increase1m<rank>)", "preemptions")],
            width=6,
            thresholds=((None, "green"), (1, "orange"), (10, "red")),
        ),
        stat(
            "Requests waiting",
            "All ranks.",
            "none",
            [query("sum(rank:requests_waiting:sum<rank>)", "waiting")],
            width=6,
            thresholds=((None, "green"), (50, "orange")),
        ),
        stat(
            "KV cache in use, fullest rank",
            "Share of the blocks that running requests hold.",
            RATE,
            [query("max(rank:kv_cache_usage_ratio:max<rank>)", "fullest rank")],
            width=6,
            defaults={"decimals": 1, "min": 0, "max": 1},
            thresholds=((None, "green"), (0.9, "orange"), (0.98, "red")),
        ),
        row("Cache"),
        curves(
            "KV cache in use, per rank",
            "Share of the rank's blocks that running requests hold; cached prefixes that nobody uses do not count.",
            RATE,
            [query(per_rank("rank:kv_cache_usage_ratio:max"), BY_RANK)],
            defaults={"max": 1},
        ),
        curves(
            "Blocks evicted, per rank",
            "Blocks per second that left the cache, over the last minute. Only engines started with --kv-cache-metrics "
            "report it, and they look at a sample of the blocks.",
            "cps",
            [query("sum by (run_id, rank) (rate(vllm:kv_block_lifetime_seconds_count<rank>[1m]))", BY_RANK)],
        ),
        row("Queue"),
        curves(
            "Requests waiting, per rank and reason",
            "Capacity: the rank is full. Deferred: held back by something that passes, such as a KV transfer.",
            "none",
            [
                query(
                    "sum by (run_id, rank, reason) (vllm:num_requests_waiting_by_reason<rank>)",
                    f"{BY_RANK} {{{{reason}}}}",
                )
            ],
        ),
        curves(
            "Time in the queue",
            "Percentiles of the last minute, from the engine's histogram.",
            SECONDS,
            quantiles("run:queue_seconds:quantile1m"),
        ),
        curves(
            "Preemptions, per rank",
            "Within the last minute.",
            "none",
            [query(per_rank("rank:preemptions:increase1m"), BY_RANK)],
        ),
        curves(
            "Time from arrival to the last token",
            "E2EL percentiles of the last minute, from the engine's histogram.",
            SECONDS,
            quantiles("run:e2el_seconds:quantile1m"),
        ),
        row("Process"),
        curves(
            "Memory of the API server",
            "Resident memory of the process that answers on the metrics page; the ranks' own processes are not in it. "
            "vLLM with several API servers does not report it.",
            "bytes",
            [query(f"process_resident_memory_bytes{scraped}", "{{run_id}} {{instance}}")],
            width=8,
        ),
        curves(
            "CPU of the API server",
            "Cores in use, over the last minute.",
            "none",
            [query(f"rate(process_cpu_seconds_total{scraped}[1m])", "{{run_id}} {{instance}}")],
            width=8,
        ),
        curves(
            "Time to read the metrics page",
            "Near the scrape interval curves get gaps.",
            SECONDS,
            [query(f"scrape_duration_seconds{scraped}", "{{run_id}} {{instance}}")],
            width=8,
        ),
    ]
    return dashboard(
        "hitlab-engine-health",
        "HitLab: engine health",
        "Whether the engine itself is in order: cache, queue, preemptions, memory.",
        panels,
        rank=True,
        since="now-15m",
        refresh="5s",
    )


def all_dashboards() -> dict[str, str]:
    """File name -> content."""
    made = {
        "live-run.json": live_run(),
        "run-history.json": run_history(),
        "engine-health.json": engine_health(),
    }
    return {name: json.dumps(document, indent=2) + "\n" for name, document in made.items()}


if __name__ == "__main__":
    for name, text in all_dashboards().items():
        (DASHBOARDS / name).write_text(text, encoding="utf-8")
