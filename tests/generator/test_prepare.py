"""What prepare writes: files, keys and their order, and that they say the same as real token ids do."""

import hashlib
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cachemodel.prediction import PlannedRequest, predict
from contract.errors import ArtifactError, ScenarioError
from contract.events import EventLog
from contract.manifest import read_manifest
from contract.redaction import Redactor
from contract.rows import FULL_KEYS, read_rows
from contract.run_directory import RunDirectory
from contract.token_ids import read_token_ids
from generator.inspect import inspect
from generator.prepare import prepare
from prompts.tokenizer import load_tokenizer
from tests.tokenizer_kinds import trained_directory

MANIFEST_KEYS = {
    "schema_version", "plugin_version", "benchmark_mode", "status", "run_id", "scenario_path", "scenario_sha256",
    "effective_config", "effective_config_sha256", "data_sha256", "corpus_sha256", "tokenizer", "requests",
    "prefix_cache", "trajectory", "theory", "groups", "dp", "warmup", "divergence", "artifacts", "manifest_sha256",
}  # fmt: skip


def test_files_keys_and_order(prepared: Callable[..., RunDirectory]) -> None:
    directory = prepared(output={"output_key": "max_tokens"})
    names = {path.name.removeprefix(directory.run_id) for path in directory.result.iterdir()}
    assert names == {
        ".full.jsonl",
        ".requests.jsonl",
        ".token_ids.arrow",
        ".manifest.json",
        ".analysis.json",
    }
    assert directory.log("prepare").is_file()
    rows = list(read_rows(directory.full))
    assert all(tuple(row) == FULL_KEYS for row in rows)
    assert [row["sequence_index"] for row in rows] == list(range(8))
    requests = list(read_rows(directory.requests))
    assert all(tuple(request) == ("question", "answer", "max_tokens") for request in requests)
    manifest = read_manifest(directory.manifest).document
    assert set(manifest) == MANIFEST_KEYS
    for name, path in (("full", directory.full), ("requests", directory.requests)):
        assert manifest["artifacts"][name]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert manifest["artifacts"][name]["bytes"] == path.stat().st_size
        assert manifest["artifacts"][name]["rows"] == 8
    assert manifest["divergence"]["unique_request_blocks"] == 8
    assert manifest["requests"]["longest_request_tokens"] == max(
        row["actual_input_tokens"] + row["max_tokens"] for row in rows
    )


@pytest.mark.parametrize("mode", ["warmup", "cold"])
def test_the_engine_model_over_real_ids_hits_what_the_theory_says(
    prepared: Callable[..., RunDirectory], mode: str
) -> None:
    """Prefix chains over the ids that a server would see, against the watermarks of the rows."""
    directory = prepared(
        prefix_cache={
            "mode": mode,
            "target_hit_rate": 0.5,
            "groups": {"count": 2},
            "order": {"strategy": "input_len_asc"},
        }
    )
    tokenizer = load_tokenizer("builtin:demo")
    rows = list(read_rows(directory.full))
    ids = list(read_token_ids(directory.token_ids))
    for row, mine in zip(rows, ids, strict=True):
        assert tokenizer.encode_for_server(row["question"]) == mine.tolist()
        assert row["actual_input_tokens"] == row["target_input_tokens"] == mine.size
        parts = row["shared_prefix_tokens"], row["seed_tokens"], row["natural_suffix_tokens"]
        assert sum(parts) == mine.size
    plan = read_manifest(directory.manifest).document["warmup"]["plan"]
    assert len(plan) == (4 if mode == "warmup" else 0)
    served = [
        PlannedRequest(tokenizer.encode_for_server(item["prompt"]), rank=0)
        for item in plan
        if item["dp_rank"] == 0
    ]
    assert all(item["input_tokens"] == len(tokenizer.encode_for_server(item["prompt"])) for item in plan)
    requests = [PlannedRequest(mine, rank=row["dp_rank"] or 0) for row, mine in zip(rows, ids, strict=True)]
    predicted = list(predict([*served, *requests], block_size=16))[len(served) :]
    assert predicted == [row["theoretical_hit_tokens"] for row in rows]
    assert sum(predicted) > 0


def test_equal_scenarios_give_equal_data(write_scenario: Callable[..., Path], tmp_path: Path) -> None:
    path = write_scenario()
    one, two = prepare(path), prepare(path, output_dir=tmp_path / "elsewhere")
    assert Path(one["full"]).read_bytes() == Path(two["full"]).read_bytes()
    assert Path(two["full"]).parent.parent.parent == tmp_path
    other = prepare(write_scenario(run={"run_id": "small", "output_dir": "out", "random_seed": 1}))
    assert Path(one["full"]).read_bytes() != Path(other["full"]).read_bytes()


def test_an_inspected_directory_is_upgraded_once(write_scenario: Callable[..., Path]) -> None:
    path = write_scenario()
    summary = inspect(path)
    paths = prepare(path)
    assert paths["manifest"] == summary["manifest"]
    assert prepare(path)["manifest"] != paths["manifest"], "a second prepare gets a new stamp"


def test_a_changed_scenario_does_not_take_over_an_inspected_directory(
    write_scenario: Callable[..., Path],
) -> None:
    summary = inspect(write_scenario())
    changed = write_scenario(output={"output_key": "max_tokens"})
    assert prepare(changed)["manifest"] != summary["manifest"]


def prepared_directory(*arguments: Any, **options: Any) -> RunDirectory:
    return RunDirectory.of_manifest(Path(prepare(*arguments, **options)["manifest"]))


def content_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_overwrite_rebuilds_the_newest_of_the_same_data_and_only_its_own_files(
    write_scenario: Callable[..., Path],
) -> None:
    first = prepared_directory(write_scenario())
    second = prepared_directory(write_scenario())
    assert first.root != second.root
    (second.result / "keep.txt").write_text("mine")
    before, manifest = content_of(first.root), second.manifest.read_bytes()
    same_data = write_scenario(service={"metrics_url": "http://elsewhere/metrics"})
    assert prepared_directory(same_data, overwrite=True) == second
    assert (second.result / "keep.txt").read_text() == "mine"
    assert second.manifest.read_bytes() != manifest, "it was rebuilt"
    assert content_of(first.root) == before


@pytest.mark.parametrize("in_scenario", [False, True])
def test_overwrite_never_touches_other_data(write_scenario: Callable[..., Path], in_scenario: bool) -> None:
    run = {"run_id": "small", "output_dir": "out", "overwrite": in_scenario}
    first = prepared_directory(write_scenario(run=run))
    before = content_of(first.root)
    changed = write_scenario(run=run, prefix_cache={"target_hit_rate": 0.25})
    again = prepared_directory(changed, overwrite=not in_scenario)
    assert again != first
    assert content_of(first.root) == before


@pytest.mark.parametrize("how", ["option", "scenario"])
def test_measurements_are_kept_and_it_is_said_where_the_data_went(
    write_scenario: Callable[..., Path], how: str
) -> None:
    path = write_scenario(run={"run_id": "small", "output_dir": "out", "overwrite": how == "scenario"})
    first = prepared_directory(path)
    measurement = first.new_measurement()
    measurement.measurement.write_text("{}")
    before, notes = content_of(first.root), []
    again = prepared_directory(path, overwrite=how == "option", note=notes.append)
    assert content_of(first.root) == before
    assert again != first
    (note,) = notes
    assert note.startswith(
        f"{first.root} holds 1 measurement and stays as it is; the data is written to {again.root} "
    )
    assert note in again.log("prepare").read_text()
    # Also run.overwrite never deletes: the word for that is on the command line alone.
    third = prepared_directory(path, overwrite=True, note=notes.append)
    assert third == again, "the newest of this data holds none"


def test_measurements_are_discarded_on_demand_alone(write_scenario: Callable[..., Path]) -> None:
    path = write_scenario()
    first = prepared_directory(path)
    first.new_measurement().measurement.write_text("{}")
    again = prepared_directory(path, overwrite=True, discard_measurements=True)
    assert again == first
    assert not first.runs.exists()
    assert read_manifest(first.manifest).status == "prepared"


def test_a_measurement_that_is_being_made_is_not_discarded(write_scenario: Callable[..., Path]) -> None:
    path = write_scenario()
    first = prepared_directory(path)
    log = EventLog(first.new_measurement().events, Redactor())
    before = content_of(first.root)
    try:
        with pytest.raises(ArtifactError, match="is being measured; wait for its end"):
            prepare(path, overwrite=True, discard_measurements=True)
    finally:
        log.close()
    assert content_of(first.root) == before


def test_overwrite_takes_the_fresh_inspect_of_this_scenario(write_scenario: Callable[..., Path]) -> None:
    """prepare, run, edit the target, inspect, prepare --overwrite."""
    first = prepared_directory(write_scenario())
    first.new_measurement().measurement.write_text("{}")
    before = content_of(first.root)
    changed = write_scenario(prefix_cache={"target_hit_rate": 0.25})
    inspected = inspect(changed)
    assert prepare(changed, overwrite=True)["manifest"] == inspected["manifest"]
    assert content_of(first.root) == before


def test_of_two_inspects_the_newest_is_taken_and_the_older_never(write_scenario: Callable[..., Path]) -> None:
    path = write_scenario()
    older, newer = inspect(path), inspect(path)
    assert prepare(path)["manifest"] == newer["manifest"]
    again = prepare(path)
    assert again["manifest"] not in (older["manifest"], newer["manifest"])
    assert Path(again["manifest"]).name > Path(newer["manifest"]).name, "run takes the newest"


def test_a_failed_prepare_leaves_no_manifest(write_scenario: Callable[..., Path], tmp_path: Path) -> None:
    path = write_scenario(corpus={"path": "missing.jsonl"})
    with pytest.raises(ScenarioError, match=r"missing.jsonl"):
        prepare(path)
    assert not list(tmp_path.glob("out_*/result/*"))


def test_warnings_of_an_unreachable_target(prepared: Callable[..., RunDirectory]) -> None:
    directory = prepared(prefix_cache={"target_hit_rate": 1.0})
    analysis = json.loads(directory.analysis.read_text())
    assert analysis["status"] == "prepared"
    assert analysis["validation"] == {
        "status": "PASS_WITH_WARNING",
        "target_reachable": False,
        "warning_only": True,
        "affects_exit_code": False,
    }
    assert [warning["code"] for warning in analysis["warnings"]] == ["TARGET_UNREACHABLE", "TARGET_DEVIATION"]
    assert analysis["effective_target_hit_rate"] == analysis["warnings"][0]["reachable_max"]
    assert analysis["target_signed_difference_pp"] < 0 < analysis["target_absolute_difference_pp"]


def test_inspect_summary(write_scenario: Callable[..., Path]) -> None:
    summary = inspect(write_scenario())
    assert list(summary) == [
        "run_id", "mode", "requested_target_hit_rate", "effective_target_hit_rate", "theoretical_hit_rate",
        "reachable_min", "reachable_max", "target_reachable", "trajectory", "group_reachability", "groups",
        "input_tokens", "output_tokens", "dp_route_counts", "sends_requests", "planning_only",
        "content_validation_deferred_to_prepare", "log", "manifest",
    ]  # fmt: skip
    assert summary["run_id"] == "small"
    assert summary["sends_requests"] is False
    assert summary["planning_only"] is summary["content_validation_deferred_to_prepare"] is True
    assert summary["trajectory"]["status"] == "PASS"
    manifest = read_manifest(Path(summary["manifest"])).document
    assert manifest["status"] == "inspected"
    assert manifest["inspect"]["summary"] == summary
    assert sum(part["count"] for part in summary["input_tokens"]["bins"]) == 8
    bins = [(part["min"], part["max"]) for part in summary["input_tokens"]["bins"]]
    assert all(one[1] < two[0] for one, two in pairwise(bins))


def test_inspect_needs_neither_tokenizer_nor_corpus(write_scenario: Callable[..., Path]) -> None:
    path = write_scenario(tokenizer={"path": "/none", "block_size": 16}, corpus={"path": "/none"})
    assert inspect(path)["groups"] == {"group-0": 4, "group-1": 4}


def test_no_secret_reaches_the_artifacts(prepared: Callable[..., RunDirectory]) -> None:
    canary = "canary-7f3a-secret"
    directory = prepared(service={"api_key": canary})
    for path in directory.root.rglob("*"):
        assert path.is_dir() or canary.encode() not in path.read_bytes()
    manifest = read_manifest(directory.manifest)
    assert manifest.effective_config["service"]["api_key_configured"] is True


@pytest.mark.parametrize("command", [inspect, prepare])
def test_output_folder_that_cannot_be_made(
    write_scenario: Callable[..., Path], tmp_path: Path, command: Callable[[Path], Any]
) -> None:
    (tmp_path / "file").write_text("")
    path = write_scenario(run={"run_id": "small", "output_dir": "file/out"})
    with pytest.raises(ArtifactError, match=r"run.output_dir"):
        command(path)


def test_prompts_that_naive_joining_breaks_are_repaired_and_counted(
    prepared: Callable[..., RunDirectory], tmp_path: Path
) -> None:
    """A vocabulary whose tokens reach across words: what is cut and joined by ids comes back as other ids."""
    tokenizer_path = trained_directory(tmp_path / "tok", "bpe-across-spaces", vocabulary=1000)
    directory = prepared(
        tokenizer={"path": str(tokenizer_path), "block_size": 16},
        requests={"count": 40, "input_length": {"mode": "truncated_normal", "min": 64, "max": 300}},
    )
    tokenizer = load_tokenizer(str(tokenizer_path))
    ids = [mine.tolist() for mine in read_token_ids(directory.token_ids)]
    texts = [row["question"] for row in read_rows(directory.full)]
    assert [tokenizer.encode_for_server(text) for text in texts] == ids
    repairs = read_manifest(directory.manifest).document["divergence"]["repairs"]
    assert sum(repairs.values()) >= 0.05 * 40


@pytest.mark.parametrize(
    ("selection", "place"),
    [
        ({"mode": "indices", "values": [0, 10**6]}, "corpus.selection.values[1]"),
        ({"mode": "indices", "indices": [0, 10**6]}, "corpus.selection.indices[1]"),
        ({"mode": "question_sha256", "values": ["ab" * 32]}, "corpus.selection.values[0]"),
        ({"mode": "question_sha256", "question_sha256": ["ab" * 32]}, "corpus.selection.question_sha256[0]"),
        ({"mode": "mixed", "indices": [10**6], "values": [1]}, "corpus.selection.indices[0]"),
    ],
)
def test_a_record_that_is_not_there_is_named_where_the_scenario_has_it(
    write_scenario: Callable[..., Path], selection: dict[str, Any], place: str
) -> None:
    corpus = {"path": "builtin:word-problems", "selection": selection}
    with pytest.raises(ScenarioError) as error:
        prepare(write_scenario(corpus=corpus))
    assert str(error.value).startswith(f"{place}: ")
