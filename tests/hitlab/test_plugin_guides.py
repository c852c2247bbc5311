"""The examples of both guides of AISBench's plugin, from inspect to report, on the simulator.

Scenarios and command lines are read from the guides, which lie beside the checkout: only paths, addresses and names of a
machine are replaced, and numbers that no test can wait for. Exit codes, lines, files and keys are those that the guides
promise; where HitLab differs on purpose, what it does is in `DIFFERENCES`, with the words that say so on the page
"coming from the plugin".
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract.run_directory import RunDirectory
from simulator.config import SimulatorConfig
from simulator.process import start_simulator
from tests.hitlab.conftest import BLOCK_SIZE, REPOSITORY, Ended, Hitlab, document, errors
from tests.mmmu import FULL_HD, HD, picture, write_mmmu
from tests.plugin_guides import ENGLISH, MISSING, NEWEST, Example, Guide
from tests.shared_data import SHARED_DATA

GSM8K = SHARED_DATA / "gsm8k_test.jsonl"
PAGE = REPOSITORY / "docs" / "coming-from-the-plugin.md"
GUIDES = {name: guide for name, guide in (("newest", NEWEST), ("english", ENGLISH)) if guide is not None}
STAMP = re.compile(r"_<(时间戳|timestamp)>")

pytestmark = [
    pytest.mark.skipif(len(GUIDES) < 2, reason=MISSING),
    pytest.mark.skipif(not GSM8K.is_file(), reason=f"no {GSM8K}"),
]


@dataclass(frozen=True)
class Difference:
    """How a command line of a guide ends here, and what the page says about it."""

    code: int
    line: str
    on_the_page: str


DIFFERENCES = {
    "prepare --scenario ./scenario.json": Difference(2, "add --mode text", "| `prepare --mode` |"),
    "prepare --scenario ./scenario.json --overwrite": Difference(
        2, "add --mode text", "| `prepare --mode` |"
    ),
    "run --scenario ./scenario.json --config ./my_prefix_cache_perf.py": Difference(
        2, "--config is for AISBench; add --driver aisbench", "| `run --config` |"
    ),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    config = SimulatorConfig(multimodal=True, block_size=BLOCK_SIZE)
    with start_simulator(config) as simulator:
        yield simulator.url


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the corpus under the name that the guides give it; charts are drawn elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("analyzer.analyze.write_report", lambda *_, **__: None)
    monkeypatch.setattr("analyzer.offline.write_report", lambda *_, **__: None)
    shutil.copyfile(GSM8K, tmp_path / "GSM8K.jsonl")
    (tmp_path / "my_prefix_cache_perf.py").write_text("# a user's own template\n")
    return tmp_path


def put(scenario: dict[str, Any], url: str, route: str = "/v1/completions", **changes: Any) -> dict[str, Any]:
    """A guide's scenario for this machine, written to ./scenario.json."""
    scenario["tokenizer"]["path"] = "builtin:demo"
    scenario["service"] |= {
        "inference_url": f"{url}{route}",
        "metrics_url": f"{url}/metrics",
        "reset_url": f"{url}/reset_prefix_cache",
        "model": "demo",
    }
    for section, fields in changes.items():
        scenario[section] = scenario.get(section, {}) | fields
    Path("scenario.json").write_text(json.dumps(scenario))
    return scenario


def newest() -> RunDirectory:
    found = sorted(Path("outputs").glob("*/result/*.manifest.json"))
    return RunDirectory.of_manifest(found[-1])


def send(hitlab: Hitlab, words: list[str]) -> Ended:
    """A command line of a guide, with the stamps and the manifest that it leaves to the reader."""
    filled = []
    for word in words:
        if STAMP.search(word):
            word = STAMP.sub(newest().root.name.removeprefix("gsm8k-prefix-cache-60"), word)
        filled.append(str(newest().manifest) if word.startswith("<manifest") else word)
    return hitlab(*filled)


def export_scrapes() -> None:
    """The newest guide's recipe: both pages out of `runtime` of the analysis."""
    runtime = document(newest().analysis)["runtime"]
    for name in ("baseline", "after"):
        Path(f"{name}.prom").write_text(runtime[f"metrics_{name}"]["raw_prometheus"])


def assert_inspected(guide: Guide, ended: Ended) -> None:
    summary = json.loads(ended.out)
    heading = "stdout 输出 JSON 摘要" if guide is NEWEST else "`inspect` stdout Fields"
    promised = guide.names(heading)
    assert [name for name in summary if name in promised] == promised, "the guide's keys in the guide's order"
    assert (summary["run_id"], summary["sends_requests"]) == ("gsm8k-prefix-cache-60", False)
    assert (summary["requested_target_hit_rate"], summary["target_reachable"]) == (0.6, True)
    manifest = document(newest().manifest)
    assert (manifest["status"], manifest["inspect"]["summary"]["mode"]) == ("inspected", "warmup")


def assert_prepared(guide: Guide, ended: Ended) -> None:
    shown = json.loads(ended.out)
    assert ended.out.count("\n") == 1, "one line"
    promised = next((item for item in guide.objects if "full" in item), shown)
    assert list(shown) == list(promised)
    assert "Generate prompts" in ended.err
    directory = newest()
    full = [json.loads(line) for line in directory.full.read_text().splitlines()]
    requests = [json.loads(line) for line in directory.requests.read_text().splitlines()]
    manifest, analysis = document(directory.manifest), document(directory.analysis)
    headings = ("full.jsonl 字段", "manifest.json 顶层字段", "analysis.json 顶层字段")
    if guide is ENGLISH:
        headings = ("`full.jsonl` Fields", "`manifest.json` Top-Level", "`analysis.json` Top-Level")
    assert list(full[0]) == guide.names(headings[0])
    assert {tuple(row) for row in requests} == {("question", "answer")}
    assert set(guide.names(headings[1])) - {"inspect"} <= manifest.keys()
    after_run = {name for name in guide.names(headings[2]) if name.startswith("theory_actual")}
    assert set(guide.names(headings[2])) - after_run - {"runtime", "actual"} <= analysis.keys()
    assert (manifest["status"], analysis["status"]) == ("prepared", "prepared")
    assert manifest["effective_config"]["prefix_cache"]["minimum_non_shared_length"] == 16
    assert sum(row["theoretical_hit_tokens"] for row in full) == 0.6 * 1024 * len(full)


def assert_valid(_guide: Guide, ended: Ended) -> None:
    shown = json.loads(ended.out)
    assert shown == {"ok": True, "rows": 100, "run_id": newest().run_id}


def assert_ran(guide: Guide, ended: Ended) -> None:
    directory = newest()
    title, *table, path = ended.out.splitlines()
    assert title == f"Prefix Cache Results of task [{directory.run_id}]:"
    assert path == f"Detailed analysis is available at: {directory.analysis.resolve()}"
    rows = [re.split(r"\s*[║│]\s*", line)[1:3] for line in table if "│" in line]
    assert rows == [
        ["Prefix Cache Metric", "Value"],
        ["Overall Target Hit Rate", "60.00%"],
        ["Overall Theoretical Hit Rate", "60.00%"],
        ["Overall Actual Hit Rate", "60.00%"],
        ["Theory vs Actual Difference", "0.00%"],
        ["Theory vs Target Difference", "0.00%"],
    ]
    analysis = document(directory.analysis)
    heading = "analysis.json 顶层字段" if guide is NEWEST else "`analysis.json` Top-Level"
    assert set(guide.names(heading)) <= analysis.keys()
    assert analysis["status"] == "complete"
    assert analysis["runtime"]["aisbench_exit_code"] is None, "no aisbench section: sent natively"
    assert analysis["actual"]["global_hits"] == analysis["theory"]["hit_tokens"] == 61440
    export_scrapes()


def assert_analyzed(_guide: Guide, ended: Ended) -> None:
    """Alone on stdout, in its own entry; the run's own analysis stays, and a line says both."""
    directory = newest()
    shown = json.loads(ended.out)
    own = max(directory.runs.iterdir())
    assert shown["status"] == "analyzed"
    assert shown == document(own / "analysis.json")
    assert shown["actual"]["global_hit_rate"] == 0.6
    assert document(directory.analysis)["status"] == "complete"
    assert "Written to:" in ended.err
    for path in (own / "analysis.json", directory.analysis):
        assert str(path.resolve()) in ended.err


def assert_helped(_guide: Guide, ended: Ended) -> None:
    for command in ("inspect", "prepare", "validate", "run", "analyze", "report"):
        assert re.search(rf"^│? *{command}\b", ended.out, re.MULTILINE)


CHECKS: dict[str, Callable[[Guide, Ended], None]] = {
    "--help": assert_helped,
    "inspect": assert_inspected,
    "prepare": assert_prepared,
    "validate": assert_valid,
    "run": assert_ran,
    "analyze": assert_analyzed,
}


@pytest.mark.parametrize("name", GUIDES)
def test_every_command_line_of_a_guide_in_its_order(hitlab: Hitlab, url: str, name: str) -> None:
    guide = GUIDES[name]
    put(guide.scenario, url)
    seen = set()
    for words in guide.commands:
        if "mm" in words:
            continue  # another scenario: `test_images`
        line, command = " ".join(words), words[0]
        ended = send(hitlab, words)
        if line in DIFFERENCES:
            assert_different(ended, DIFFERENCES[line])
            if command == "run":
                continue
            ended = send(hitlab, [*words, "--mode", "text"])  # as the newest guide has it
        assert ended.code == 0, (line, ended.err)
        CHECKS[command](guide, ended)
        seen.add(command)
    assert seen == set(CHECKS)
    assert_reported(hitlab)
    assert_logged(newest_measured())


def assert_different(ended: Ended, expected: Difference) -> None:
    assert (ended.code, ended.out) == (expected.code, "")
    (error,) = errors(ended)
    assert expected.line in error
    assert expected.on_the_page in PAGE.read_text()


def newest_measured() -> RunDirectory:
    """What the English guide rebuilds at its end holds measurements and stays; its data gets another stamp."""
    found = sorted(Path("outputs").glob("*/result/runs"))
    return RunDirectory.of_manifest(next(found[-1].parent.glob("*.manifest.json")))


def assert_reported(hitlab: Hitlab) -> None:
    ended = hitlab("report", "--manifest", newest_measured().manifest)
    assert ended.code == 0
    shown = json.loads(ended.out)
    assert list(shown)[:6] == ["run_id", "measurement", "status", "csv", "json", "metrics"]
    assert [shown["metrics"][name]["N"] for name in ("E2EL", "TTFT", "InputTokens")] == [100, 100, 100]
    assert shown["metrics"]["InputTokens"]["Average"] == 1024


LOGGED = {
    "inspect": ("setting requests", "phase plan: T", "input lengths: total 102400, min 1024", "group-0: 100 requests"),
    "prepare": (
        *("phase load tokenizer: T", "phase build prompts and write requests: T", "input lengths: total 102400"),
        *("output lengths: total 3200", "target: 60.0000% requested", "theory: 61440 of 102400 tokens hit"),
        *("trajectory: ", "warmup group-0 on rank 1: ", "full: "),
    ),
    "validate": ("phase rows, their order and hashes: T", "valid: 100 rows"),
    "run": (
        *("phase precheck: T", "check tokenizer: ok", "phase reset: T", "phase warmup: T", "warmup group-0 on rank 0"),
        *("phase baseline: T", "baseline: rank 0: queries", "phase formal: T", "load: ", "phase settle: T"),
        *("phase after: T", "after: rank 1: queries", "measurement complete"),
    ),
    "analyze": ("hit rates: target 60.0000%, theory 60.0000%, actual 60.0000%", "rank 1: ", "phase analyse: T"),
    "report": ("TTFT (ms): average", "Total Requests: 100"),
}  # fmt: skip
"""Lines of each log; T is a time."""


def assert_logged(directory: RunDirectory) -> None:
    for command, expected in LOGGED.items():
        text = re.sub(r"\d+\.\d{3} s$", "T", directory.log(command).read_text(), flags=re.MULTILINE)
        for line in expected:
            assert line in text, (command, line)
        assert not re.search(r"\bERROR\b", text)


def with_example(scenario: dict[str, Any], example: Example) -> dict[str, Any]:
    """The minimal example with one field as the table shows it, and the counts that this field asks for."""
    field, value = example.field, example.value
    count, groups = 12, 3
    if field == "output.output_key":
        scenario["output"] = value
    else:
        *path, last = field.replace("group-N", "group-1").split(".")
        section = scenario
        for step in path:
            section = section.setdefault(step, {})
        section[last] = value
    if value.get("mode") == "explicit":
        count = len(value["values"])
    if value.get("mode") == "range":
        value["ranges"] = [part | {"count": max(1, part["count"] // 10)} for part in value["ranges"]]
        count = sum(part["count"] for part in value["ranges"])
    if value.get("mode") == "csv":
        header = "input_tokens" if "input" in field else "output_tokens"
        Path(value["path"]).write_text("\n".join([header, *(str(700 + number) for number in range(count))]))
    if value.get("mode") == "weights":
        groups = len(value["weights"])
    if "question_sha256" in value or value.get("mode") == "question_sha256":
        _real_hashes(value)
    scenario["requests"]["count"] = count
    scenario["prefix_cache"]["groups"]["count"] = groups
    return scenario


def _real_hashes(value: dict[str, Any]) -> None:
    """The guides leave the hash to the reader: it is that of the normalised text of record 3."""
    question = json.loads(Path("GSM8K.jsonl").read_text().splitlines()[3])["question"]
    normal = " ".join(question.split())
    key = "values" if value["mode"] == "question_sha256" else "question_sha256"
    value[key] = [hashlib.sha256(normal.encode()).hexdigest()]


@pytest.mark.parametrize("example", NEWEST.examples if NEWEST else [], ids=lambda item: item.name)
def test_every_example_of_the_table_of_fields(hitlab: Hitlab, url: str, example: Example) -> None:
    """Inspected, prepared and valid, with the lengths, groups and records that the example asks for."""
    assert NEWEST is not None
    scenario = put(with_example(NEWEST.scenario, example), url)
    for words in (["inspect"], ["prepare", "--mode", "text"]):
        ended = hitlab(*words, "--scenario", "scenario.json")
        assert ended.code == 0, ended.err
    directory = newest()
    assert hitlab("validate", "--manifest", directory.manifest).code == 0
    full = [json.loads(line) for line in directory.full.read_text().splitlines()]
    assert len(full) == scenario["requests"]["count"]
    assert_as_asked(example, full, directory)


def assert_as_asked(example: Example, full: list[dict[str, Any]], directory: RunDirectory) -> None:
    """What the example is about, seen in the data. An oracle of its own: the rows are read, not the plan."""
    value, field = example.value, example.field
    column = "actual_input_tokens" if "input_length" in field else "max_tokens"
    rows = [row for row in full if row["group_id"] == "group-1"] if "group-N" in field else full
    found = [row[column] for row in sorted(rows, key=lambda row: row["request_id"])]
    groups = [sum(row["group_id"] == f"group-{number}" for row in full) for number in range(4)]
    records = {index for row in rows for index in row["gsm_indices"]}
    if field.endswith("_length"):
        expected: dict[str, Callable[[], bool]] = {
            "fixed": lambda: set(found) == {value["value"]},
            "explicit": lambda: found == value["values"],
            "range": lambda: all(
                sum(part["min"] <= length <= part["max"] for length in found) == part["count"]
                for part in value["ranges"]
            ),
            "csv": lambda: found == [700 + number for number in range(len(found))],
        }
        between = lambda: all(value["min"] <= length <= value["max"] for length in found)  # noqa: E731
        assert expected.get(value["mode"], between)()
    elif field.endswith("selection"):
        named = set(value.get("values") or value.get("indices") or ())
        if value["mode"] == "indices":
            assert records == named
        elif value["mode"] == "question_sha256":
            assert records == {3}
        elif value["mode"] == "mixed":
            assert records == named | {3}
    elif field.endswith("assignment"):
        number = len(value.get("weights") or (1, 1, 1))
        shares = {
            "uniform": [1.0] * number,
            "zipf": [1 / rank ** value.get("exponent", 1) for rank in range(1, number + 1)],
            "weights": value.get("weights"),
        }[value["mode"]]
        assert sum(groups) == len(full)
        for size, share in zip(groups, shares, strict=False):
            assert abs(size - len(full) * share / sum(shares)) < 1
    elif field == "output.output_key":
        first = json.loads(directory.requests.read_text().splitlines()[0])
        assert list(first) == ["question", "answer", "max_tokens"]
    elif value.get("strategy") == "input_len_asc":
        for group in {row["group_id"] for row in full}:
            lengths = [row["actual_input_tokens"] for row in full if row["group_id"] == group]
            assert lengths == sorted(lengths)


RUNS: dict[str, tuple[str, ...]] = {
    "cold": (
        *("prefix_cache.order-input_len_asc", "requests.input_length-truncated_normal"),
        *("requests.output_length-uniform", "prefix_cache.groups.assignment-zipf"),
    ),
    "warmup": (
        *("corpus.selection-mixed", "requests.input_length-csv", "output.output_key-max_tokens"),
        *("prefix_cache.groups.overrides.group-N.corpus_selection-indices", "prefix_cache.groups.assignment-weights"),
    ),
}  # fmt: skip
"""Examples of the table that are measured together, in the two modes; cold with input_len_asc is the guide's advice."""


@pytest.mark.parametrize("mode", RUNS)
def test_examples_together_from_inspect_to_report(hitlab: Hitlab, url: str, mode: str) -> None:
    assert NEWEST is not None
    known = {example.name: example for example in NEWEST.examples}
    scenario = NEWEST.scenario
    for name in RUNS[mode]:
        groups = scenario["prefix_cache"]["groups"]["count"]
        with_example(scenario, known[name])
        scenario["prefix_cache"]["groups"]["count"] = max(groups, scenario["prefix_cache"]["groups"]["count"])
    put(scenario, url, prefix_cache={"mode": mode})
    for words in (["inspect"], ["prepare", "--mode", "text"], ["run"]):
        ended = hitlab(*words, "--scenario", "./scenario.json")
        assert ended.code == 0, ended.err
    directory = newest()
    analysis, manifest = document(directory.analysis), document(directory.manifest)
    assert (analysis["status"], manifest["prefix_cache"]["mode"]) == ("complete", mode)
    assert analysis["agreement"]["hits_equal"] is analysis["agreement"]["queries_equal"] is True
    full = [json.loads(line) for line in directory.full.read_text().splitlines()]
    assert analysis["actual"]["global_hits"] == sum(row["theoretical_hit_tokens"] for row in full) > 0
    assert {row["dp_rank"] for row in full} == ({0, 1} if mode == "cold" else {None})
    of_target = {"TARGET_UNREACHABLE", "TARGET_DEVIATION"}
    found = {warning["code"] for warning in analysis["warnings"]}
    assert found <= of_target, "a target out of reach is no fault of the measurement"
    assert analysis["validation"]["status"] == ("PASS_WITH_WARNING" if found else "PASS")
    assert analysis["validation"]["actual_status"] == "PASS"
    assert hitlab("validate", "--manifest", directory.manifest).code == 0
    report = json.loads(hitlab("report", "--manifest", directory.manifest).out)
    assert report["metrics"]["E2EL"]["N"] == len(full)


def test_a_target_out_of_reach_is_a_warning(hitlab: Hitlab, url: str) -> None:
    """The guides' table of warnings: shown as PASS_WITH_WARNING, exit code 0."""
    assert NEWEST is not None
    scenario = NEWEST.scenario
    put(scenario, url, prefix_cache={"target_hit_rate": 1.0}, requests={"count": 8})
    for words in (["prepare", "--mode", "text"], ["run"]):
        assert hitlab(*words, "--scenario", "./scenario.json").code == 0
    analysis = document(newest().analysis)
    assert [item["code"] for item in analysis["warnings"]] == ["TARGET_UNREACHABLE", "TARGET_DEVIATION"]
    assert analysis["validation"] | {"ledgers": None} == {
        "status": "PASS_WITH_WARNING",
        "target_reachable": False,
        "warning_only": True,
        "affects_exit_code": False,
        "actual_status": "PASS",
        "ledgers": None,
    }


@pytest.mark.parametrize(("kind", "size"), [("single_1080p", FULL_HD), ("multi_720p_5", HD)])
def test_images(hitlab: Hitlab, url: str, folder: Path, kind: str, size: tuple[int, int]) -> None:
    """The newest guide's section for images behind its minimal example, whose own sections may stay."""
    assert NEWEST is not None
    section = next(item for item in NEWEST.objects if "multimodal" in item)["multimodal"]
    write_mmmu(folder / "MMMU" / "test-0.parquet", [[picture(size)]])
    section = section | {"mmmu_parquet_dir": "./MMMU", "scenarios": [kind]}
    scenario = put(NEWEST.scenario, url, "/v1/chat/completions", requests={"count": 6}, multimodal=section)
    assert "prefix_cache" in scenario, "may be kept"
    prepare = next(words for words in NEWEST.commands if "mm" in words)
    for words in (prepare, ["run", "--scenario", "./scenario.json"]):
        ended = send(hitlab, words)
        assert ended.code == 0, ended.err
    directory = newest()
    manifest, analysis = document(directory.manifest), document(directory.analysis)
    assert (manifest["benchmark_mode"], list(manifest["datasets"])) == ("mm", [kind])
    assert manifest["datasets"][kind]["image_count_per_request"] == (1 if kind == "single_1080p" else 5)
    assert (analysis["status"], analysis["validation"]["status"]) == ("complete", "PASS")
    assert json.loads(hitlab("validate", "--manifest", directory.manifest).out)["rows"] == 6
    report = json.loads(hitlab("report", "--manifest", directory.manifest).out)
    assert report["metrics"]["TTFT"]["N"] == 6
    for command, line in (
        ("prepare", "phase build texts: "),
        ("prepare", "image: "),
        ("run", "phase formal: "),
    ):
        assert line in directory.log(command).read_text()


def test_what_the_page_says_of_fields_that_are_read_differently(hitlab: Hitlab, url: str) -> None:
    """indices count records that are not empty; the native driver sends once; no bar off a terminal."""
    assert NEWEST is not None
    lines = Path("GSM8K.jsonl").read_text().splitlines()
    Path("GSM8K.jsonl").write_text("\n\n".join(lines[:6]) + "\n")
    scenario = NEWEST.scenario
    scenario["corpus"]["selection"] = {"mode": "indices", "values": [1]}
    put(scenario, url, requests={"count": 4}, aisbench={"model": {"retry": 5}}, driver={"kind": "native"})
    ended = hitlab("prepare", "--mode", "text", "--scenario", "./scenario.json")
    assert (ended.code, ended.err) == (0, "Generate prompts (4) ...\n")
    directory = newest()
    row = json.loads(directory.full.read_text().splitlines()[0])
    second = " ".join(json.loads(lines[1])["question"].split())
    assert set(row["gsm_indices"]) == {1}
    assert set(row["gsm_hashes"]) == {hashlib.sha256(second.encode()).hexdigest()}
    config = document(directory.manifest)["effective_config"]
    assert (config["driver"]["retries"], config["aisbench"]["model"]["retry"]) == (0, 5)


def test_two_scrapes_become_the_analysis_only_where_nothing_was_measured(hitlab: Hitlab, url: str) -> None:
    assert NEWEST is not None
    put(NEWEST.scenario, url, requests={"count": 4})
    for words in (["prepare", "--mode", "text"], ["run"]):
        assert hitlab(*words, "--scenario", "./scenario.json").code == 0
    export_scrapes()
    shutil.rmtree(newest().runs)
    directory = newest()
    directory.analysis.unlink()
    words = (
        "analyze",
        "--manifest",
        directory.manifest,
        "--baseline",
        "baseline.prom",
        "--after",
        "after.prom",
    )
    ended = hitlab(*words)
    assert ended.code == 0
    assert f"and, as no complete measurement is there, to {directory.analysis}" in ended.err
    shown = json.loads(ended.out)
    assert shown == document(directory.analysis)
    assert {"metrics_baseline", "metrics_after"} <= shown["runtime"].keys()
    assert (shown["actual"]["global_kv_cache_usage_avg"], shown["validation"]["actual_status"]) == (
        None,
        "PASS",
    )
    assert "two scrapes hold no samples" in shown["actual"]["kv_cache_usage_reason"]
