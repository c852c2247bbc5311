"""What can be shown without a real engine: the guides' scenario, templates, warmups, faults, and ending early."""

import csv
import json
import os
import signal
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from contract.rows import read_rows
from simulator.config import SimulatorConfig
from simulator.process import RunningSimulator, start_simulator
from tests.aisbench.conftest import MakeJob, Run
from tests.aisbench.scenarios import assert_lanes_kept, records, service, simulated
from tests.contract.scenario.test_guides import MINIMAL

CANARY = "canary-key-90d1"


def simulator(**options: Any) -> RunningSimulator:
    return start_simulator(SimulatorConfig.model_validate({"block_size": 16, **options}))


def assert_exact(run: Run) -> None:
    assert run.code == 0, run.err
    theory = sum(row["theoretical_hit_tokens"] for row in read_rows(run.directory.full))
    assert run.analysis["actual"]["global_hits"] == theory > 0
    assert run.analysis["ledgers"]["agree"] is True


def processes() -> dict[int, str]:
    """Command lines of all processes, by pid."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it ended while we looked
    return found


def files_with(text: str, *folders: Path) -> list[Path]:
    return [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


def test_minimal_scenario_of_the_guides_and_a_key_that_nobody_sees(make_job: MakeJob, tmp_path: Path) -> None:
    with simulator(model_name="model-name", api_key=CANARY) as engine:
        document = {
            **MINIMAL,
            "tokenizer": {"path": "builtin:demo", "block_size": 16},
            "corpus": {**MINIMAL["corpus"], "path": "builtin:word-problems"},
            "service": service(engine.url, "model-name"),
            "aisbench": {},
        }
        seen: dict[int, str] = {}

        def look(running: "subprocess.Popen[str]") -> None:
            while running.poll() is None:
                now = {pid: line for pid, line in processes().items() if CANARY in line}
                seen.update(now)
                if any((tmp_path / "a job").rglob("performances")):
                    return
                time.sleep(0.2)

        run = make_job(document, OPENAI_API_KEY=CANARY, TMPDIR=str(tmp_path)).run(meanwhile=look)
    assert_exact(run)
    assert seen == {}
    assert CANARY not in run.out + run.err
    assert files_with(CANARY, tmp_path) == []
    measured = run.measurement["aisbench"]
    assert Path(measured["results"]).parent == tmp_path / "a job" / "outputs" / "default"
    assert measured["total_requests"] == 100
    with (run.measured.root / measured["csv"]).open(newline="") as file:
        table = {row["Performance Parameters"]: row for row in csv.DictReader(file)}
    assert table["TTFT"]["N"] == "100"
    rows = records(run.measured)
    ours = sum(row["ttft_s"] for row in rows) / len(rows) * 1e3
    assert float(table["TTFT"]["Average"].removesuffix(" ms")) == pytest.approx(ours, rel=0.05, abs=0.2)
    assert table["InputTokens"]["Average"] == "1024.0"
    assert "Performance Results of task" in run.err  # AISBench's own words, live


TEMPLATE = """
from ais_bench.benchmark.calculators import DefaultPerfMetricCalculator as Calculator
from ais_bench.benchmark.partitioners import NaivePartitioner
from ais_bench.benchmark.summarizers import DefaultPerfSummarizer
from ais_bench_prefix_cache.config import build_dataset_config, build_model_config
import os

datasets = [build_dataset_config(os.environ["AISBENCH_PREFIX_CACHE_SCENARIO"])]
models = [dict(build_model_config(os.environ["AISBENCH_PREFIX_CACHE_SCENARIO"]), batch_size=3, api_key="from-template")]
infer = dict(partitioner=dict(type=NaivePartitioner))
summarizer = dict(
    attr="performance", type=DefaultPerfSummarizer, calculator=dict(type=Calculator, stats_list=["Average", "P90"])
)
work_dir = "from template"
notes = [dict(unusual=Calculator), ("a", 1)]
"""


def test_template_warmups_and_odd_names(make_job: MakeJob, tmp_path: Path) -> None:
    """A copy of the plugin's template, with statistics and a folder of its own; three warmups, as a list."""
    (tmp_path / "my template.py").write_text(TEMPLATE)
    with simulator() as engine:
        document = simulated(
            engine.url,
            aisbench={
                "extra_args": ["--num-warmups", "3"],
                "dataset": {"abbr": "my/data set"},
                "model": {"abbr": "team/model", "retry": 0, "generation_kwargs": {"temperature": 0.5}},
            },
        )
        run = make_job(document).run("--config", str(tmp_path / "my template.py"))
    assert_exact(run)
    assert_lanes_kept(records(run.measured))
    assert run.measurement["overrides"] == {"aisbench.config": str(tmp_path / "my template.py")}
    assert run.measurement["load"]["concurrency"] == 3
    assert run.measurement["load"]["retries"] == 0
    assert run.measurement["load"]["started"] == 40
    results = Path(run.measurement["aisbench"]["results"])
    assert results.parent == tmp_path / "a job" / "from template"
    assert (results / "performances" / "team_model" / "my_data set.csv").is_file()
    with (run.measured.root / "aisbench" / "performance.csv").open(newline="") as file:
        assert next(csv.reader(file)) == ["Performance Parameters", "Stage", "Average", "P90", "N"]
    config = run.measured.aisbench_config.read_text()
    assert (
        "ais_bench.benchmark.calculators.default_perf_metric_calculator.DefaultPerfMetricCalculator" in config
    )
    assert files_with("from-template", run.measured.root, results) == []


def test_a_server_that_dies_in_the_middle(make_job: MakeJob) -> None:
    with simulator(decode_tokens_per_second=20) as engine:
        job = make_job(simulated(engine.url))

        def kill(running: "subprocess.Popen[str]") -> None:
            _wait_for_requests(job.directory.runs, running)
            os.kill(engine.pid, signal.SIGKILL)

        run = job.run(meanwhile=kill)
    assert run.code == 5
    (line,) = [line for line in run.err.splitlines() if line.startswith("ERROR: ")]
    rows = records(run.measured)
    answered = [row for row in rows if row["error_kind"] is None]
    sent = {row["position"] for row in rows}
    assert f"{len(sent)} of 40 requests were sent, {len(answered)} answered" in line
    assert 0 < len(answered) < len(sent) < 40
    assert {row["error_kind"] for row in rows} >= {"reset", "connect"}
    measurement = run.measurement
    assert measurement["status"] == "failed"
    assert measurement["load"]["finished"] == len(answered)
    assert str(run.measured.root) in line


def test_ctrl_c_ends_everything(make_job: MakeJob, tmp_path: Path) -> None:
    with simulator(decode_tokens_per_second=5) as engine:
        document = simulated(engine.url, aisbench={"model": {"batch_size": 600}})
        job = make_job(document, TMPDIR=str(tmp_path))  # AISBench's command lines begin with it
        asked: list[float] = []

        def stop(running: "subprocess.Popen[str]") -> None:
            _wait_for_requests(job.directory.runs, running)
            running.send_signal(signal.SIGINT)
            asked.append(time.monotonic())

        run = job.run(meanwhile=stop)
        assert time.monotonic() - asked[0] < 5
    assert run.code == 130
    assert run.measurement["status"] == "interrupted"
    assert not [line for line in processes().values() if str(tmp_path) in line]
    rows = records(run.measured) if run.measured.requests.exists() else []
    assert {row["error_kind"] for row in rows} <= {None, "aborted"}


@pytest.mark.parametrize("template", ["import nothing_of_this_name\n", "datasets = []\nmodels = [{}]\n"])
def test_a_template_that_cannot_be_used_is_told_before_anything_is_sent(
    make_job: MakeJob, tmp_path: Path, template: str
) -> None:
    path = tmp_path / "template.py"
    path.write_text(template)
    with simulator() as engine:
        run = make_job(simulated(engine.url)).run("--config", str(path))
    assert run.code == 5
    (line,) = [line for line in run.err.splitlines() if line.startswith("ERROR: ")]
    assert line.startswith("ERROR: aisbench.config: ")
    assert not run.measured.baseline.exists()
    assert run.measurement["preflight"] == []


def _wait_for_requests(runs: Path, running: "subprocess.Popen[str]") -> None:
    """Return once some requests have been answered; their records are on disk before the run is over."""
    while running.poll() is None:
        streams = list(runs.glob("*/requests.arrows"))
        if streams and streams[0].stat().st_size > 6000:
            return
        time.sleep(0.05)
    pytest.fail(f"the run ended too early: {running.communicate()}")


def test_measurement_says_what_it_is(make_job: MakeJob) -> None:
    """Two runs of a shared work_dir keep their results apart."""
    with simulator() as engine:
        job = make_job(
            simulated(engine.url, aisbench={"work_dir": "shared work", "model": {"batch_size": 2}})
        )
        runs = [job.run(), job.run()]
    folders = [run.measurement["aisbench"]["results"] for run in runs]
    assert len(set(folders)) == 2
    for run, folder in zip(runs, folders, strict=True):
        assert_exact(run)
        copied = json.loads((run.measured.root / "aisbench" / "performance.json").read_text())
        abbr = run.directory.run_id
        theirs = Path(folder, "performances", f"{abbr}-vllm", f"{abbr}.json")
        assert json.loads(theirs.read_text()) == copied
        assert run.analysis["runtime"]["aisbench_exit_code"] == 0


def test_kv_usage_is_that_of_the_load_not_of_the_process(make_job: MakeJob) -> None:
    """AISBench imports before it sends, and writes tables afterwards: what is sampled then is no load."""
    with simulator(decode_tokens_per_second=10) as engine:
        document = simulated(engine.url, service=service(engine.url, "demo", poll_interval_seconds=0.1))
        run = make_job(document).run()
    assert_exact(run)
    polling = run.analysis["runtime"]["kv_cache_polling"]
    (began,) = [
        datetime.fromisoformat(phase["started_at"]).timestamp()
        for phase in run.measurement["phases"]
        if phase["name"] == "formal"
    ]
    sent = records(run.measured)
    first = min(row["wall_start"] for row in sent) - began
    last = max(row["wall_start"] + row["e2el_s"] for row in sent) - began
    assert polling["load_seconds"] == pytest.approx([first, last])
    inside = [sample for sample in polling["samples"] if first <= sample["elapsed_seconds"] <= last]
    usages = [usage for sample in inside for usage in sample["by_dp"].values()]
    assert 0 < len(inside) < polling["count"]
    assert polling["summary"]["count"] == len(inside)
    assert run.analysis["actual"]["global_kv_cache_usage_avg"] == pytest.approx(sum(usages) / len(usages))
    everything = [usage for sample in polling["samples"] for usage in sample["by_dp"].values()]
    assert sum(everything) / len(everything) < sum(usages) / len(usages), "idle time would make it less"
