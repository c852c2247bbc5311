"""A linter for the dashboards and the provisioning, and Grafana's own types."""

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana.generate import all_dashboards
from tests.grafana.dashboards import FILES, GRAFANA, load, panels, texts, variables_in

OURS = ("engine", "model", "run", "rank")
BUILT_IN = {"__all", "__auto", "__value", "__data", "__field", "__from", "__to"}
"""Of Grafana, as far as the dashboards use them."""

UNITS = {"none", "percentunit", "s", "bytes", "reqps", "cps", "dateTimeAsIso"}
UNIT_FORMS = ("suffix:", "si:")
"""Ids of Grafana's unit formats; the two forms take any text."""

VISUALIZATIONS = {"stat", "timeseries", "table", "bargauge"}
GRID_WIDTH = 24


def problems(dashboard: dict[str, Any]) -> list[str]:
    """What is wrong with a dashboard; each check is tried on a damaged one below."""
    required = ("uid", "title", "description", "schemaVersion", "tags")
    found = [f"no {name}" for name in required if not dashboard.get(name)]
    every = [inner for panel in dashboard["panels"] for inner in (panel, *panel.get("panels", []))]
    numbers = [panel["id"] for panel in every]
    if len(set(numbers)) != len(numbers):
        found.append("two panels with one id")
    titles = [panel["title"] for panel in every]
    if len(set(titles)) != len(titles):
        found.append("two panels with one title")
    for left, right in itertools.combinations(every, 2):
        if overlap(left["gridPos"], right["gridPos"]):
            found.append(f"{left['title']} lies over {right['title']}")
    for panel in every:
        place = panel["gridPos"]
        if place["x"] < 0 or place["w"] < 1 or place["x"] + place["w"] > GRID_WIDTH or place["h"] < 1:
            found.append(f"{panel['title']}: outside of the grid")
    for panel in panels(dashboard):
        found += [f"{panel['title']}: {problem}" for problem in panel_problems(panel)]
    declared = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set().union(*(variables_in(text) for text in texts(dashboard)))
    found += [f"unknown variable ${name}" for name in sorted(used - declared - BUILT_IN)]
    found += [f"variable ${name} is not used" for name in sorted(declared - used)]
    known: set[str] = set()
    for variable in dashboard["templating"]["list"]:
        if not variable.get("label") or not variable.get("description"):
            found.append(f"variable {variable['name']}: no label or description")
        if late := variables_in(variable["query"]["query"]) - known:
            found.append(f"variable {variable['name']}: needs {late}, which come after it")
        known.add(variable["name"])
    for source in sources(dashboard):
        if source not in (
            {"type": "prometheus", "uid": "hitlab-prometheus"},
            {"type": "grafana", "uid": "-- Grafana --"},
        ):
            found.append(f"unknown data source {source}")
    return found


def panel_problems(panel: dict[str, Any]) -> list[str]:
    found = []
    if panel["type"] not in VISUALIZATIONS:
        found.append(f"unknown visualization {panel['type']}")
    if len(panel.get("description", "")) < 10:
        found.append("no description")
    defaults = panel["fieldConfig"]["defaults"]
    units = [defaults.get("unit", "")] + [
        item["value"]
        for override in panel["fieldConfig"]["overrides"]
        for item in override["properties"]
        if item["id"] == "unit"
    ]
    found += [
        f"unknown unit {unit!r}" for unit in units if unit not in UNITS and not unit.startswith(UNIT_FORMS)
    ]
    steps = defaults.get("thresholds", {}).get("steps", [])
    if not steps or steps[0]["value"] is not None:
        found.append("no thresholds, or none for the lowest values")
    bounds = [step["value"] for step in steps[1:]]
    if bounds != sorted(bounds):
        found.append("thresholds are not in order")
    if any("#" in step["color"] for step in steps):
        found.append("a fixed colour suits light or dark, not both")
    refs = [target["refId"] for target in panel["targets"]]
    if not refs or len(set(refs)) != len(refs):
        found.append("no queries, or two of one name")
    for target in panel["targets"]:
        if not target["expr"].strip() or target["expr"].count("(") != target["expr"].count(")"):
            found.append(f"{target['refId']}: no whole expression")
        if "<" in target["expr"].replace("<=", ""):
            found.append(f"{target['refId']}: a placeholder was left")
        if panel["type"] != "table" and target["legendFormat"] in ("", "__auto"):
            found.append(f"{target['refId']}: no legend")
    return found


def sources(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [found for item in value for found in sources(item)]
    if not isinstance(value, dict):
        return []
    own = [value["datasource"]] if "datasource" in value else []
    return own + [found for item in value.values() for found in sources(item)]


def overlap(left: dict[str, int], right: dict[str, int]) -> bool:
    return (
        left["x"] < right["x"] + right["w"]
        and right["x"] < left["x"] + left["w"]
        and left["y"] < right["y"] + right["h"]
        and right["y"] < left["y"] + left["h"]
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_linter_finds_nothing(path: Path) -> None:
    assert problems(load(path)) == []


DAMAGE = {
    "no uid": lambda d: d.update(uid=""),
    "two panels with one id": lambda d: d["panels"][1].update(id=d["panels"][0]["id"]),
    "two panels with one title": lambda d: d["panels"][1].update(title=d["panels"][0]["title"]),
    "lies over": lambda d: d["panels"][1]["gridPos"].update(d["panels"][0]["gridPos"]),
    "outside of the grid": lambda d: d["panels"][0]["gridPos"].update(x=23),
    "unknown visualization": lambda d: d["panels"][0].update(type="graph"),
    "no description": lambda d: d["panels"][0].update(description=""),
    "unknown unit": lambda d: d["panels"][0]["fieldConfig"]["defaults"].update(unit="tokens"),
    "unknown unit ''": lambda d: d["panels"][0]["fieldConfig"]["defaults"].pop("unit"),
    "no thresholds": lambda d: d["panels"][0]["fieldConfig"]["defaults"].pop("thresholds"),
    "unknown variable $rnu": lambda d: d["panels"][0]["targets"][0].update(expr='x{run_id=~"$rnu"}'),
    "no whole expression": lambda d: d["panels"][0]["targets"][0].update(expr="sum(x"),
    "no legend": lambda d: d["panels"][0]["targets"][0].update(legendFormat=""),
    "unknown data source": lambda d: d["panels"][0].update(datasource={"type": "prometheus", "uid": "other"}),
    "which come after it": lambda d: d["templating"]["list"].reverse(),
    "no label or description": lambda d: d["templating"]["list"][0].pop("label"),
    "is not used": lambda d: d["templating"]["list"].append(
        {"name": "spare", "label": "a", "description": "b", "query": {"query": ""}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("expected", DAMAGE)
def test_the_linter_finds_each_kind_of_damage(expected: str) -> None:
    dashboard = copy.deepcopy(load(GRAFANA / "dashboards" / "live-run.json"))
    DAMAGE[expected](dashboard)
    assert any(expected in problem for problem in problems(dashboard))


def test_the_files_are_what_the_generator_makes() -> None:
    made = all_dashboards()
    assert sorted(made) == [path.name for path in FILES]
    for path in FILES:
        assert path.read_text(encoding="utf-8") == made[path.name], "run: python grafana/generate.py"


def test_uids_are_stable_and_links_lead_somewhere() -> None:
    uids = {load(path)["uid"] for path in FILES}
    assert uids == {"hitlab-live-run", "hitlab-run-history", "hitlab-engine-health"}
    for path in FILES:
        for text in texts(load(path)):
            if text.startswith("/d/"):
                assert text.removeprefix("/d/").split("?")[0] in uids


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_runs_are_chosen_and_phases_are_marked(path: Path) -> None:
    dashboard = load(path)
    names = [variable["name"] for variable in dashboard["templating"]["list"]]
    assert set(names) >= {"engine", "model", "run"}
    assert set(names) <= set(OURS)
    layers = {layer["name"]: layer["target"]["tags"] for layer in dashboard["annotations"]["list"]}
    assert layers == {
        "Phases": ["hitlab", "phase"],
        "Warnings": ["hitlab", "warning"],
        "Verdicts": ["hitlab", "verdict"],
    }


def test_the_annotator_uses_the_tags_that_the_dashboards_ask_for() -> None:
    from analyzer.watch.annotations import annotations_of
    from tests.analyzer.watch.conftest import event, whole_run

    made = annotations_of(
        "r", "s", whole_run(event(2, "warning", code="X", message="y")), None, ended=True, failure="z"
    )
    for layer in load(FILES[0])["annotations"]["list"]:
        assert any(set(layer["target"]["tags"]) <= set(annotation.tags) for annotation in made), layer["name"]


def test_provisioning_has_what_the_dashboards_name() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert (source["uid"], source["type"], source["access"]) == ("hitlab-prometheus", "prometheus", "proxy")
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/hitlab.yml").read_text())["providers"]
    assert provider["type"] == "file"
    assert provider["folderUid"] == "hitlab"
    assert provider["allowUiUpdates"] is False


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_grafanas_own_types_know_every_field(path: Path) -> None:
    """Read into the models that Grafana publishes and written back: a field that they do not know would be lost."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    document = load(path)
    again = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(document)))
    assert list(lost(document, again)) == []
    wrong = copy.deepcopy(document)
    wrong["panels"][0]["fieldConfig"]["defaults"]["untis"] = "s"
    again = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(wrong)))
    assert list(lost(wrong, again)) == ["panels.0.fieldConfig.defaults.untis"]


def lost(before: Any, after: Any, where: str = "") -> Any:
    """Paths of what is in one document and not, or differently, in the other. null counts as missing."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            if name in after:
                yield from lost(value, after[name], f"{where}{name}.")
            elif value is not None:
                yield f"{where}{name}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (left, right) in enumerate(zip(before, after, strict=True)):
            yield from lost(left, right, f"{where}{number}.")
    elif before != after:
        yield where.rstrip(".")
