"""The main job as a user runs it, on the simulator: commands in, one table out, equal to the token."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from contract.rows import read_rows
from contract.run_directory import MeasurementDirectory, RunDirectory
from hitlab.commands.run import print_ledgers
from tests.hitlab.conftest import API_KEY, Ended, Hitlab, WriteScenario, prepared
from tests.misbehaving_server import COMPLETIONS, MisbehavingServer

REPOSITORY = Path(__file__).resolve().parents[2]


def analysis_of(directory: RunDirectory) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(directory.analysis.read_text())
    return document


def measurement_of(directory: RunDirectory) -> MeasurementDirectory:
    return MeasurementDirectory(max(directory.runs.iterdir()))


def assert_equal_to_the_token(directory: RunDirectory) -> dict[str, Any]:
    analysis = analysis_of(directory)
    rows = list(read_rows(directory.full))
    records = pq.read_table(measurement_of(directory).requests).to_pylist()
    theory = {row["sequence_index"]: row["theoretical_hit_tokens"] for row in rows}
    assert {record["position"]: record["cached_tokens"] for record in records} == theory
    assert analysis["actual"]["global_hits"] == sum(theory.values()) > 0
    assert analysis["actual"]["global_queries"] == sum(row["actual_input_tokens"] for row in rows)
    for group, reported in analysis["actual"]["client"]["groups"].items():
        expected = sum(row["theoretical_hit_tokens"] for row in rows if row["group_id"] == group)
        assert reported["cached_tokens"] == expected
    for rank in {row["dp_rank"] for row in rows} - {None}:
        expected = sum(row["theoretical_hit_tokens"] for row in rows if row["dp_rank"] == rank)
        assert analysis["actual"]["by_dp"][str(rank)]["hits"] == expected
    assert analysis["theory_actual_difference_pp"] == pytest.approx(0, abs=1e-9)
    return analysis


def test_warmup_prints_title_table_and_path_and_nothing_else(
    hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario
) -> None:
    path = write_scenario(engine_url)
    directory = prepared(hitlab, path)
    assert hitlab("validate", "--manifest", directory.manifest).code == 0
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 0, ended.err
    analysis = assert_equal_to_the_token(directory)
    lines = ended.out.splitlines()
    assert lines[0] == f"Prefix Cache Results of task [{directory.run_id}]:"
    assert lines[-1] == f"Detailed analysis is available at: {directory.analysis}"
    cells = [[cell.strip() for cell in line.strip("║").split("│")] for line in lines[1:-1] if "│" in line]
    rate = f"{analysis['theoretical_hit_rate']:.2%}"
    assert cells == [
        ["Prefix Cache Metric", "Value"],
        ["Overall Target Hit Rate", "60.00%"],
        ["Overall Theoretical Hit Rate", rate],
        ["Overall Actual Hit Rate", rate],
        ["Theory vs Actual Difference", "0.00%"],
        ["Theory vs Target Difference", f"{analysis['target_difference_pp']:.2f}%"],
    ]
    assert analysis["status"] == "complete"
    assert analysis["runtime"]["phases"] == [
        "precheck",
        "reset",
        "warmup",
        "baseline",
        "formal",
        "settle",
        "after",
    ]
    assert len(analysis["runtime"]["warmup"]) == 6
    assert analysis["runtime"]["load"]["max_in_flight"] == 8


def test_cold_and_then_again_after_the_reset(
    hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario
) -> None:
    path = write_scenario(
        engine_url,
        prefix_cache={
            "mode": "cold",
            "target_hit_rate": 0.5,
            "groups": {"count": 2, "assignment": {"mode": "zipf"}},
            "order": {"strategy": "input_len_asc"},
        },
    )
    directory = prepared(hitlab, path)
    for _ in range(2):
        assert hitlab("run", "--scenario", path).code == 0
        assert_equal_to_the_token(directory)
    assert len(list(directory.runs.iterdir())) == 2, "a measurement never takes another's place"


def test_without_streaming_the_hit_rate_is_still_exact(
    hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario
) -> None:
    path = write_scenario(engine_url, aisbench={"model": {"stream": False}}, driver={"kind": "native"})
    directory = prepared(hitlab, path)
    assert hitlab("run", "--scenario", path).code == 0
    assert_equal_to_the_token(directory)
    records = pq.read_table(measurement_of(directory).requests).to_pylist()
    assert {record["ttft_s"] for record in records} == {None}


def test_simulator_as_engine_overrides_the_file(hitlab: Hitlab, write_scenario: WriteScenario) -> None:
    path = write_scenario("http://127.0.0.1:9")
    directory = prepared(hitlab, path)
    assert hitlab("run", "--scenario", path, "--engine", "simulator").code == 0
    analysis = assert_equal_to_the_token(directory)
    assert analysis["runtime"]["engine"]["kind"] == "simulator"
    measurement = json.loads(measurement_of(directory).measurement.read_text())
    assert measurement["overrides"] == {"engine.kind": "simulator"}


def test_measuring_and_analysing_apart(
    hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario
) -> None:
    path = write_scenario(engine_url)
    directory = prepared(hitlab, path)
    ended = hitlab("run", "--scenario", path, "--measure-only")
    assert ended.code == 0
    measurement = MeasurementDirectory(Path(ended.out.strip()))
    assert not measurement.analysis.exists()
    assert analysis_of(directory)["status"] == "prepared"
    ended = hitlab("analyze", "--manifest", directory.manifest, "--measurement", measurement.stamp)
    assert ended.code == 0
    assert json.loads(ended.out) == assert_equal_to_the_token(directory)
    assert (
        "has no measurement" in hitlab("analyze", "--manifest", directory.manifest, "--measurement", "x").err
    )


def test_exported_scrapes_give_the_same_actual(
    hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    path = write_scenario(engine_url)
    directory = prepared(hitlab, path)
    assert hitlab("run", "--scenario", path).code == 0
    measured = analysis_of(directory)
    for name in ("baseline", "after"):
        (tmp_path / f"{name}.prom").write_text(measured["runtime"][f"metrics_{name}"]["raw_prometheus"])
    ended = hitlab(
        "analyze",
        "--manifest", directory.manifest,
        "--baseline", tmp_path / "baseline.prom",
        "--after", tmp_path / "after.prom",
    )  # fmt: skip
    assert ended.code == 0
    assert "engine_label_map and thresholds are those of the measurement with the same scrapes: " in ended.err
    alone = ("analyze", "--manifest", directory.manifest, "--scenario", path)
    assert hitlab(*alone, "--measurement", measured["runtime"]["measurement"]).code == 2
    offline = json.loads(ended.out)
    assert offline["status"] == "analyzed"
    for name in ("global_queries", "global_hits", "global_hit_rate"):
        assert offline["actual"][name] == measured["actual"][name]
    assert analysis_of(directory) == measured, "an offline pair does not displace a complete measurement"


def test_a_changed_address_needs_no_new_prepare_but_changed_data_does(
    hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario
) -> None:
    prepared(hitlab, write_scenario("http://127.0.0.1:9"))
    path = write_scenario(engine_url)
    assert hitlab("run", "--scenario", path).code == 0
    ended = hitlab("run", "--scenario", write_scenario(engine_url, requests={"count": 31}))
    assert ended.code == 3
    assert f"hitlab prepare --scenario {path} --mode text" in ended.err


def test_a_named_manifest_is_used_or_refused(
    hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario
) -> None:
    path = write_scenario(engine_url)
    first = prepared(hitlab, path)
    prepared(hitlab, path)
    assert hitlab("run", "--scenario", path, "--manifest", first.manifest).code == 0
    assert analysis_of(first)["status"] == "complete"
    other = write_scenario(engine_url, run={"random_seed": 1})
    ended = hitlab("run", "--scenario", other, "--manifest", first.manifest)
    assert ended.code == 3
    assert "was prepared from other data" in ended.err


def test_damaged_data_is_not_sent(hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario) -> None:
    path = write_scenario(engine_url)
    directory = prepared(hitlab, path)
    directory.full.write_bytes(directory.full.read_bytes().replace(b'"none"', b'"NONE"', 1))
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 3
    assert directory.full.name in ended.err
    assert not directory.runs.exists()


@pytest.mark.parametrize(
    ("section", "fields", "message"),
    [
        ("tokenizer", {"block_size": 32}, "the engine's is 16; set tokenizer.block_size to 16"),
        ("service", {"model": "other"}, "service.model 'other' is not served; set it to 'demo'"),
        ("service", {"dp_size": 3}, "missing DP ranks: 2"),
        ("service", {"inference_url": "http://127.0.0.1:9/v1/completions"}, "cannot be reached"),
        ("service", {"metrics_url": "http://127.0.0.1:9/metrics"}, "check service.metrics_url"),
        ("service", {"reset_url": None}, "service.reset_url is not configured"),
        ("service", {"reset_url": ""}, "service.reset_url is not configured"),
        ("requests", {"output_length": {"mode": "fixed", "value": 20000}}, "start the engine with --max-model-len"),
    ],
)  # fmt: skip
def test_an_engine_that_does_not_fit_is_one_line_with_the_field(
    hitlab: Hitlab,
    engine_url: str,
    write_scenario: WriteScenario,
    section: str,
    fields: dict[str, Any],
    message: str,
) -> None:
    path = write_scenario(engine_url, **{section: fields})
    directory = prepared(hitlab, path)
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 4
    errors = [line for line in ended.err.splitlines() if line.startswith("ERROR")]
    assert len(errors) == 1
    assert message in errors[0]
    assert ended.out == ""
    measurement = json.loads(measurement_of(directory).measurement.read_text())
    assert measurement["status"] == "failed"
    assert message in measurement["error"]


def test_another_tokenizer_than_the_engines_is_found(
    hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    from prompts.corpus import load_corpus

    other = Tokenizer(models.BPE())
    other.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    from tokenizers import decoders

    other.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    other.train_from_iterator(load_corpus("builtin:word-problems", "question").texts[:200], trainer)
    (tmp_path / "tok").mkdir()
    other.save(str(tmp_path / "tok" / "tokenizer.json"))
    path = write_scenario(engine_url, tokenizer={"path": str(tmp_path / "tok")})
    prepared(hitlab, path)
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 4
    assert "to the engine's own tokenizer" in ended.err


def test_an_assumed_empty_cache_is_believed_once_and_contaminated_the_second_time(
    hitlab: Hitlab, write_scenario: WriteScenario
) -> None:
    from simulator.config import SimulatorConfig
    from simulator.process import start_simulator

    with start_simulator(SimulatorConfig(block_size=16, dev_mode=False)) as simulator:
        path = write_scenario(simulator.url, service={"assume_empty_cache": True})
        directory = prepared(hitlab, path)
        ended = hitlab("run", "--scenario", path)
        assert ended.code == 0
        assert "WARNING: ASSUME_EMPTY_CACHE" in ended.err
        analysis = assert_equal_to_the_token(directory)
        assert [warning["code"] for warning in analysis["warnings"]] == ["ASSUME_EMPTY_CACHE"]
        assert analysis["validation"]["status"] == "PASS_WITH_WARNING"
        assert analysis["validation"]["actual_status"] == "PASS_WITH_WARNING"

        ended = hitlab("run", "--scenario", path)
        assert ended.code == 0
        found = [warning["code"] for warning in analysis_of(directory)["warnings"]]
        assert found.count("CONTAMINATED") == 2, "by the probes, and by the warmup"
        assert "HIT_TOKENS_DIFFER" in found

        ended = hitlab("run", "--scenario", write_scenario(simulator.url))
        assert ended.code == 4
        assert "VLLM_SERVER_DEV_MODE=1" in ended.err


def test_an_unreachable_target_is_a_warning(
    hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario
) -> None:
    path = write_scenario(engine_url, prefix_cache={"target_hit_rate": 1.0})
    directory = prepared(hitlab, path)
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 0
    analysis = assert_equal_to_the_token(directory)
    assert [warning["code"] for warning in analysis["warnings"]] == ["TARGET_UNREACHABLE", "TARGET_DEVIATION"]
    assert "WARNING: TARGET_UNREACHABLE: 100.00% requested" in ended.err


@pytest.mark.parametrize("source", ["scenario", "environment"])
def test_the_key_is_sent_and_never_written(
    hitlab: Hitlab,
    locked_engine_url: str,
    write_scenario: WriteScenario,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
) -> None:
    service = {"api_key": API_KEY} if source == "scenario" else {}
    if source == "environment":
        monkeypatch.setenv("OPENAI_API_KEY", API_KEY)
    path = write_scenario(locked_engine_url, service=service)
    directory = prepared(hitlab, path)
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 0, ended.err
    assert_equal_to_the_token(directory)
    assert API_KEY not in ended.out + ended.err
    for written in directory.root.rglob("*"):
        assert written.is_dir() or API_KEY.encode() not in written.read_bytes(), written


def test_a_missing_key_is_told(hitlab: Hitlab, locked_engine_url: str, write_scenario: WriteScenario) -> None:
    path = write_scenario(locked_engine_url)
    prepared(hitlab, path)
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 4
    assert "set service.api_key or OPENAI_API_KEY" in ended.err


def test_quickstart_without_torch_and_transformers(tmp_path: Path) -> None:
    """The demo, in a process in which neither can be imported."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'transformers'):\n"
        "            raise ImportError(name + ' is blocked')\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )
    scenario = REPOSITORY / "examples" / "quickstart" / "quickstart.yaml"
    text = scenario.read_text().replace("../../outputs/quickstart", str(tmp_path / "out"))
    (tmp_path / "quickstart.yaml").write_text(text)

    def command(*arguments: str) -> Ended:
        done = subprocess.run(
            [sys.executable, "-c", "from hitlab.main import main; main()", *arguments],
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    blocked = subprocess.run(
        [sys.executable, "-c", "import transformers"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert blocked.returncode != 0, "the block works"
    path = str(tmp_path / "quickstart.yaml")
    ended = command("prepare", "--scenario", path, "--mode", "text")
    assert ended.code == 0, ended.err
    directory = RunDirectory.of_manifest(Path(json.loads(ended.out)["manifest"]))
    ended = command("run", "--scenario", path)
    assert ended.code == 0, ended.err
    assert_equal_to_the_token(directory)


def test_warmups_of_aisbench_are_sent_by_the_native_driver_as_well(
    hitlab: Hitlab, server: MisbehavingServer, write_scenario: WriteScenario
) -> None:
    sent = []
    for count in (0, 3):
        arguments = {"extra_args": {"--num-warmups": count}}
        path = write_scenario(server.url, aisbench=arguments, driver={"kind": "native"})
        prepared(hitlab, path)
        before = server.seen[COMPLETIONS]
        assert hitlab("run", "--scenario", path).code == 0
        sent.append(server.seen[COMPLETIONS] - before)
    assert sent[1] - sent[0] == 3


def test_a_caveat_of_the_engines_version_is_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    caveat = "vLLM 0.11 counts each preempted request twice"
    difference = {"between": ["counters", "answers"], "caveat": caveat}
    ledgers = {"differences": [difference, difference | {"caveat": None}]}
    print_ledgers({"validation": {"ledgers": {}}, "ledgers": ledgers})
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if caveat in line] == [f"counters and answers: {caveat}"]
