"""A whole load, with a program of a few lines in AISBench's place: what it leaves is what is told."""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contract.manifest import Manifest
from contract.records import RequestRecord
from contract.redaction import Redactor
from contract.run_directory import MeasurementDirectory
from contract.scenario import parse_scenario
from prompts.tokenizer import load_tokenizer
from runner.drivers.aisbench import load as load_module
from runner.drivers.aisbench.load import aisbench_load
from runner.drivers.outcome import LoadOutcome
from runner.engines.engine import Engine

ROWS = 4
PROGRAM = """
import fcntl, json, os, subprocess, sys, time
from pathlib import Path

job = json.loads(Path(sys.argv[1]).read_text())
ready = {"protocol": 1, "aisbench_version": "9", "work_dir": job["work_dir"], "dataset_abbr": "d", "model_abbr": "m",
         "batch_size": 2, "stream": True, "attempts": 1, "request_rate": 0}
with os.fdopen(int(sys.argv[2]), "w") as answer:
    json.dump(ready, answer)
folder = Path(sys.stdin.readline().strip())
out = open(Path(os.environ["HITLAB_AISBENCH_RECORDS"], "attempts.1.jsonl"), "ab", buffering=0)
fcntl.flock(out, fcntl.LOCK_EX)

def say(**event):
    out.write(json.dumps(event).encode() + b"\\n")

def begin(position):
    now = time.perf_counter_ns()
    identity = {"position": position, "request_id": f"r{position}", "group": "group-0", "dp_rank": 0,
                "lane_sequence": position, "attempt": 1, "started_ns": now, "wall_start": time.time()}
    say(event="begin", **identity)
    return identity

def end(identity, error=None):
    say(event="end", ended_ns=time.perf_counter_ns(), ttft_s=0.1, e2el_s=0.2, itl_s=[], chunks=1, http_status=200,
        error_kind=error, error_text=error, prompt_tokens=None if error else 5, completion_tokens=1, cached_tokens=0,
        image_tokens=None, finish_reason="stop", **identity)

def close(error=None):
    say(event="closed", error=error)

def tables(total=4, failed=0):
    results = folder / "performances" / "m"
    results.mkdir(parents=True)
    (results / "d.csv").write_text("a,b")
    counts = {"Total Requests": {"total": total}, "Failed Requests": {"total": failed}}
    (results / "d.json").write_text(json.dumps(counts))
"""
Load = Callable[..., LoadOutcome]


@pytest.fixture
def run_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Runs a program; `records` gets the attempts, `when` is called with the stop event in a thread."""
    package = tmp_path / "program" / "hitlab_aisbench"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("HITLAB_AISBENCH_PYTHON", sys.executable)
    monkeypatch.setattr(load_module, "DEATH_SECONDS", 0.2)

    def run(
        program: str, records: list[RequestRecord] | None = None, stop_after: float | None = None
    ) -> LoadOutcome:
        (package / "__main__.py").write_text(PROGRAM + program)
        scenario = parse_scenario({"aisbench": {}}, folder=tmp_path)
        directory = SimpleNamespace(run_id="run", full=tmp_path / "full", manifest=tmp_path / "manifest")
        manifest = SimpleNamespace(
            directory=directory,
            mode="text",
            request_count=ROWS,
            document={"scenario_path": "s", "prefix_cache": {"mode": "cold"}},
        )
        measured = MeasurementDirectory(tmp_path / "measured")
        measured.root.mkdir()
        stop = threading.Event()
        with aisbench_load(
            scenario,
            tmp_path,
            cast("Manifest", manifest),
            load_tokenizer("builtin:demo"),
            Engine("external", "http://127.0.0.1:1/v1/completions", (), None, "m", 1),
            measured,
            api_key="",
            redact=Redactor(),
            say=lambda _: None,
        ) as load:
            load.wait_until_ready(stop)
            if stop_after is not None:
                threading.Timer(stop_after, stop.set).start()
            found: list[RequestRecord] = [] if records is None else records
            return load.run(found.append, lambda: None, stop, lambda *_: None)

    return run


ALL = "for row in range(4): end(begin(row))\n"


def test_a_good_one(run_load: Load, tmp_path: Path) -> None:
    records: list[RequestRecord] = []
    outcome = run_load(ALL + "close(); tables()", records)
    assert outcome.failure is None
    assert outcome.findings == ()
    assert [record.position for record in records] == [0, 1, 2, 3]
    load = outcome.load
    assert (load.driver, load.started, load.finished, load.failed, load.retries) == ("aisbench", 4, 4, 0, 0)
    assert load.max_in_flight == 1
    found: Any = outcome.aisbench
    assert (found.version, found.exit_code, found.total_requests, found.failed_requests) == ("9", 0, 4, 0)
    assert (tmp_path / "measured" / found.csv).read_text() == "a,b"
    assert Path(found.results).parent == tmp_path / "outputs" / "default"
    assert json.loads((Path(found.results) / "performances" / "m" / "d.json").read_text())


@pytest.mark.parametrize(
    ("program", "reason", "sent", "answered"),
    [
        (ALL + "close('nobody answers'); tables(); sys.exit(1)", "nobody answers", 4, 4),
        (ALL + "close(); print('Error: no disk'); sys.exit(7)", r"exit code 7 \(Error: no disk\)", 4, 4),
        (ALL + "close()", r"has left no .*d\.csv", 4, 4),
        ("end(begin(0)); close(); tables(1)", "ended before the last request", 1, 1),
        ("end(begin(0)); begin(1); os._exit(3)", "exit code 3", 2, 1),
        (
            "end(begin(0)); begin(1); out.close()\nwhile True: time.sleep(1)",
            "one of its processes died",
            2,
            1,
        ),
    ],
)
def test_what_did_not_get_through_says_how_far_it_got(
    run_load: Load, program: str, reason: str, sent: int, answered: int
) -> None:
    outcome = run_load(program)
    assert outcome.failure is not None
    assert outcome.failure.exit_code == 5
    with pytest.raises(type(outcome.failure), match=reason):
        raise outcome.failure
    assert f"{sent} of 4 requests were sent, {answered} answered" in str(outcome.failure)


def test_an_exception_that_local_runner_hides(run_load: Load) -> None:
    log = "path = folder / 'logs' / 'infer' / 'm' / 'd.out'; path.parent.mkdir(parents=True)\n"
    log += (
        "path.write_text('Traceback\\n  File x\\npkg.BadError: \\x1b[1mno memory\\x1b[0m\\n[INFO] done\\n')\n"
    )
    outcome = run_load(log + "sys.exit(1)")
    assert "exit code 1 (pkg.BadError: no memory)" in str(outcome.failure)


def test_failed_requests_are_not_a_failure_of_the_driver(run_load: Load) -> None:
    outcome = run_load(
        "for row in range(4): end(begin(row), 'http' if row % 2 else None)\nclose(); tables(4, 2)"
    )
    assert outcome.failure is None
    assert outcome.findings == ()
    assert (outcome.load.finished, outcome.load.failed) == (2, 2)


def test_counts_that_differ(run_load: Load) -> None:
    outcome = run_load(ALL + "close(); tables(4, 1)")
    assert outcome.failure is None
    (finding,) = outcome.findings
    assert finding.code == "AISBENCH_COUNTS_DIFFER"
    assert finding.message == "AISBench counts 1 failed of 4 requests, the records 0 of 4"


def test_a_stop_ends_it_at_once(run_load: Load) -> None:
    records: list[RequestRecord] = []
    begun = time.monotonic()
    outcome = run_load("end(begin(0)); begin(1)\nwhile True: time.sleep(1)", records, stop_after=0.5)
    assert time.monotonic() - begun < 4
    assert outcome.failure is None
    assert [(record.position, record.error_kind) for record in records] == [(0, None), (1, "aborted")]
    assert (outcome.load.aborted, outcome.load.failed, outcome.load.finished) == (1, 1, 1)
