"""Two scrapes are read with the ranks and labels that they were taken with, and swapped ranks are told."""

import json
from pathlib import Path
from typing import Any

import pytest

from analyzer.analyze import analyze_measurement
from analyzer.ledgers import Ledger, Tokens
from analyzer.offline import analyze_scrapes
from analyzer.rank_comparison import ranks_differ
from contract.errors import ArtifactError, ScenarioError
from contract.run_directory import MeasurementDirectory
from tests.analyzer.conftest import BLOCK, Made, Make
from tests.analyzer.synthetic import MODEL

STAMP = "20260101_000000"
SWAPPED = {"0": 1, "1": 0}

SAMPLED = "kv_cache_usage_reason"
"""Two scrapes have no samples for another reason than a run without any."""


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzer.analyze.write_report", lambda *_, **__: None)
    monkeypatch.setattr("analyzer.offline.write_report", lambda *_, **__: None)


def codes(document: dict[str, Any]) -> list[str]:
    return [warning["code"] for warning in document["warnings"]]


def swapped_labels(made: Made) -> MeasurementDirectory:
    """A run on an engine whose labels are the other way round, which its scenario said after prepare."""
    counters = made.counters()
    counters[0], counters[1] = counters[1], counters[0]
    service = made.manifest.effective_config["service"] | {"engine_label_map": SWAPPED}
    return made.write(
        counters=counters, service=service, validation={"target_warning_pp": 1.0, "actual_warning_pp": 9.0}
    )


def scenario(made: Made, **changes: dict[str, Any]) -> Path:
    """The scenario that the data was prepared from, with changes."""
    document = {
        "run": {"run_id": "made", "output_dir": str(made.manifest.directory.root / "out")},
        "tokenizer": {"path": "builtin:demo", "block_size": BLOCK},
        "corpus": {"path": "builtin:word-problems"},
        "requests": {
            "count": 24,
            "input_length": {"mode": "truncated_normal", "min": 64, "max": 300},
            "output_length": {"mode": "fixed", "value": 4},
        },
        "prefix_cache": {
            "mode": made.manifest.effective_config["prefix_cache"]["mode"], "target_hit_rate": 0.5,
            "groups": {"count": 3},
        },
        "service": {"model": MODEL, "dp_size": made.ranks},
    }  # fmt: skip
    for section, fields in changes.items():
        document[section] = {**document.get(section, {}), **fields}
    path = made.manifest.directory.root / "scenario.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("copied", [False, True], ids=["its files", "taken out of the analysis with jq"])
def test_the_measurement_with_these_scrapes_says_how_to_read_them(
    make: Make, tmp_path: Path, copied: bool
) -> None:
    made = make()
    directory = swapped_labels(made)
    measured = analyze_measurement(made.manifest, STAMP).document
    assert codes(measured) == []
    before, after = directory.baseline, directory.after
    if copied:
        for name in ("baseline", "after"):
            raw = measured["runtime"][f"metrics_{name}"]["raw_prometheus"]
            (tmp_path / f"{name}.prom").write_text(raw + "\n")
        before, after = tmp_path / "baseline.prom", tmp_path / "after.prom"
    said: list[str] = []
    document = analyze_scrapes(made.manifest, before, after, say=said.append).document
    for rank, counted in measured["actual"]["by_dp"].items():
        found = document["actual"]["by_dp"][rank]
        assert found | {SAMPLED: None} == counted | {SAMPLED: None}
    assert codes(document) == []
    read_with = document["runtime"]["read_with"]
    assert (read_with["source"], read_with["engine_label_map"]) == ("measurement", SWAPPED)
    assert read_with["actual_warning_pp"] == 9.0
    expected = "dp_size, engine_label_map and thresholds are those of the measurement with the same scrapes: "
    current = made.manifest.directory.analysis
    assert said[0] == f"{expected}{directory.measurement}"
    assert said[1].startswith("Written to: ")
    assert said[1].endswith(f"/analysis.json; {current} stays that of the complete measurement")


def foreign_copies(directory: MeasurementDirectory, folder: Path) -> tuple[Path, Path]:
    """The same numbers on pages that no measurement has."""
    copies = folder / "before.prom", folder / "later.prom"
    for path, copy in zip((directory.baseline, directory.after), copies, strict=True):
        copy.write_text("# taken by hand\n" + path.read_text())
    return copies


def test_without_one_the_time_of_prepare_counts_and_swapped_ranks_are_named(
    make: Make, tmp_path: Path
) -> None:
    made = make()
    before, after = foreign_copies(swapped_labels(made), tmp_path)
    said: list[str] = []
    document = analyze_scrapes(made.manifest, before, after, say=said.append).document
    assert document["runtime"]["read_with"]["source"] == "manifest"
    assert said[0].endswith(f"the time of prepare: {made.manifest.directory.manifest}")
    (warning,) = [warning for warning in document["warnings"] if warning["code"] == "RANKS_DIFFER"]
    assert "ranks 0 and 1 are swapped; correct service.engine_label_map" in warning["message"]
    assert document["validation"]["status"] == "PASS_WITH_WARNING"


def test_a_named_scenario_comes_first(make: Make, tmp_path: Path) -> None:
    made = make()
    directory = swapped_labels(made)
    for before, after in (foreign_copies(directory, tmp_path), (directory.baseline, directory.after)):
        path = scenario(made, service={"engine_label_map": SWAPPED}, validation={"actual_warning_pp": 2.5})
        said: list[str] = []
        document = analyze_scrapes(made.manifest, before, after, scenario=path, say=said.append).document
        assert codes(document) == []
        read_with = document["runtime"]["read_with"]
        assert (read_with["source"], read_with["actual_warning_pp"]) == ("scenario", 2.5)
        assert said[0].endswith(f"the scenario: {path}")


def test_a_scenario_of_other_data_is_refused(make: Make) -> None:
    made = make()
    directory = made.write()
    scrapes = (directory.baseline, directory.after)
    with pytest.raises(ArtifactError, match="was prepared from other data than"):
        analyze_scrapes(made.manifest, *scrapes, scenario=scenario(made, run={"random_seed": 7}))
    with pytest.raises(ScenarioError, match=r"service\.dp_size is 4; this data was prepared for 2 ranks"):
        analyze_scrapes(made.manifest, *scrapes, scenario=scenario(made, service={"dp_size": 4}))


def test_other_ranks_than_at_prepare_where_the_service_chooses_them(make: Make, tmp_path: Path) -> None:
    made = make("warmup-2")
    made.ranks = 1
    before, after = foreign_copies(made.write(), tmp_path)
    document = analyze_scrapes(
        made.manifest, before, after, scenario=scenario(made, service={"dp_size": 1})
    ).document
    assert document["runtime"]["read_with"]["dp_size"] == 1
    assert list(document["actual"]["by_dp"]) == ["0"]
    assert document["actual"]["global_hits"] == document["theory"]["hit_tokens"]


def test_a_measured_run_compares_its_ranks_as_well(make: Make) -> None:
    made = make()
    counters = made.counters()
    counters[0], counters[1] = counters[1], counters[0]
    made.write(counters=counters)
    document = analyze_measurement(made.manifest, STAMP).document
    (warning,) = [warning for warning in document["warnings"] if warning["code"] == "RANKS_DIFFER"]
    assert "ranks 0 and 1 are swapped" in warning["message"]


def ledger(*ranks: tuple[int | None, int | None]) -> Ledger:
    return Ledger(Tokens(), {rank: Tokens(hits, queries) for rank, (queries, hits) in enumerate(ranks)})


PLAN = {
    str(rank): {"input_tokens": queries, "hit_tokens": hits}
    for rank, (queries, hits) in enumerate([(100, 10), (200, 20), (300, 30), (300, 40)])
}


def test_ranks_that_differ_are_told_apart() -> None:
    assert ranks_differ(PLAN, ledger((100, 10), (200, 20), (300, 30), (300, 40))) == []
    assert ranks_differ({}, ledger((1, 1))) == []
    assert ranks_differ(PLAN, ledger((None, 10), (200, 20))) == [], "what is not known is not compared"
    (one,) = ranks_differ(PLAN, ledger((300, 30), (200, 20), (100, 10), (300, 39)))
    assert one["message"] == (
        "counters against the plan: ranks 0 and 2 are swapped; correct service.engine_label_map, or the addresses of the "
        "ranks; rank 3 counted 39 hit tokens of 300, planned are 40 of 300"
    )
    (cycle,) = ranks_differ(PLAN, ledger((200, 20), (300, 30), (100, 10), (300, 40)))
    assert "swapped" not in cycle["message"]
    assert "rank 0 counted 20 hit tokens of 200, planned are 10 of 100" in cycle["message"]
