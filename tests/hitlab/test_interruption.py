"""Real signals to a real `hitlab run`: it ends in time, in every phase, and keeps what it measured."""

import json
import os
import signal
import time
from collections.abc import Callable

import pyarrow.parquet as pq
import pytest

from contract.records import REQUEST_SCHEMA
from contract.run_directory import MeasurementDirectory, RunDirectory
from contract.streams import read_stream
from tests.hitlab.conftest import REQUESTS, Hitlab, Job, document, end_of, errors, start_command
from tests.misbehaving_server import (
    COMPLETIONS,
    METRICS,
    MisbehavingServer,
    counter,
    from_here,
    hangs,
    metrics,
    never_settling,
    warmups,
)

SECONDS_TO_END = 2.0
PATIENT = {"timeout_seconds": 60.0, "poll_interval_seconds": 0.05}
DRIVER = {"concurrency": 4, "timeout_seconds": 60.0}


def measurement_of(directory: RunDirectory) -> MeasurementDirectory:
    return MeasurementDirectory(max(directory.runs.iterdir()))


def preflight_hangs(server: MisbehavingServer) -> None:
    server.instead["/v1/models"] = hangs


def preflight_waits(server: MisbehavingServer) -> None:
    """The engine never stands still."""
    server.instead[METRICS] = metrics(never_settling("vllm:prefix_cache_queries"))


def warmup_hangs(server: MisbehavingServer) -> None:
    server.instead[COMPLETIONS] = warmups(hangs)


def load_hangs(server: MisbehavingServer) -> None:
    server.formal = dict.fromkeys(range(13, 17), hangs)


def load_and_metrics_hang(server: MisbehavingServer) -> None:
    load_hangs(server)
    server.formal[12] = from_here(METRICS, hangs)


def counters_do_not_settle(server: MisbehavingServer) -> None:
    less = counter("vllm:prefix_cache_queries", lambda value: value - 1)
    server.formal[20] = from_here(METRICS, metrics(less))


def last_scrape_hangs(server: MisbehavingServer) -> None:
    server.formal[REQUESTS] = from_here(METRICS, hangs)


def until(path: str, calls: int) -> Callable[[MisbehavingServer], None]:
    return lambda server: server.wait_until(lambda: server.seen[path] >= calls)


def until_warmup(number: int) -> Callable[[MisbehavingServer], None]:
    return lambda server: server.wait_until(lambda: server.warmup_requests >= number)


def until_formal(number: int, then_scrapes: int = 0) -> Callable[[MisbehavingServer], None]:
    def wait(server: MisbehavingServer) -> None:
        server.wait_until(lambda: server.formal_requests >= number)
        time.sleep(0.3)
        scrapes = server.seen[METRICS] + then_scrapes
        server.wait_until(lambda: server.seen[METRICS] >= scrapes)

    return wait


@pytest.mark.parametrize(
    ("number", "misbehaviour", "wait", "records"),
    [
        (signal.SIGINT, preflight_hangs, until("/v1/models", 1), None),
        (signal.SIGTERM, preflight_waits, until(METRICS, 4), None),
        (signal.SIGINT, warmup_hangs, until_warmup(1), None),
        (signal.SIGINT, load_hangs, until_formal(16), 16),
        (signal.SIGTERM, load_hangs, until_formal(16), 16),
        (signal.SIGTERM, load_and_metrics_hang, until_formal(16), 16),
        (signal.SIGINT, counters_do_not_settle, until_formal(REQUESTS, then_scrapes=2), REQUESTS),
        (signal.SIGTERM, last_scrape_hangs, until_formal(REQUESTS), REQUESTS),
    ],
)
def test_a_signal_ends_every_phase_in_time(
    hitlab: Hitlab,
    server: MisbehavingServer,
    job: Job,
    number: signal.Signals,
    misbehaviour: Callable[[MisbehavingServer], None],
    wait: Callable[[MisbehavingServer], None],
    records: int | None,
) -> None:
    directory = job(service=PATIENT, driver=DRIVER)
    misbehaviour(server)
    only = ("--measure-only",) if records else ()
    process = start_command("run", "--scenario", directory.root.parent / "scenario.json", *only)
    wait(server)
    assert process.poll() is None
    begun = time.monotonic()
    process.send_signal(number)
    ended = end_of(process)
    took = time.monotonic() - begun
    assert ended.code == 130, ended.err
    # On a machine that is busy with other things everything takes longer, the end of a process too.
    assert took < SECONDS_TO_END * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    measurement = measurement_of(directory)
    assert errors(ended) == [f"ERROR: interrupted; what was measured is kept in {measurement.root}"]
    assert ended.out == (f"{measurement.root}\n" if only else "")
    assert "Traceback" not in ended.err
    told = document(measurement.measurement)
    assert (told["status"], told["error"]) == ("interrupted", "stopped by the user")
    assert json.loads(measurement.events.read_text().splitlines()[-1])["event"] == "run_finished"
    analyzed = hitlab("analyze", "--manifest", directory.manifest, "--measurement", measurement.stamp)
    assert analyzed.code == 130
    if records is None:
        assert f"{measurement.root}: holds no requests" in analyzed.err
        return
    kept = pq.read_table(measurement.requests).to_pylist()
    assert len(kept) == records
    assert {record["error_kind"] for record in kept} <= {None, "aborted"}
    assert json.loads(analyzed.out)["status"] == "interrupted"
    assert document(directory.analysis)["status"] == "prepared"


@pytest.mark.parametrize(
    ("misbehaviour", "wait"),
    [
        (preflight_hangs, until("/v1/models", 1)),
        (load_hangs, until_formal(16)),
        (last_scrape_hangs, until_formal(REQUESTS)),
    ],
)
def test_many_signals_are_one_wish(
    server: MisbehavingServer,
    job: Job,
    misbehaviour: Callable[[MisbehavingServer], None],
    wait: Callable[[MisbehavingServer], None],
) -> None:
    """A key that is held, or a process group that is signalled again and again."""
    directory = job(service=PATIENT, driver=DRIVER)
    misbehaviour(server)
    process = start_command("run", "--scenario", directory.root.parent / "scenario.json")
    wait(server)
    for number in (signal.SIGINT, signal.SIGTERM) * 40:
        if process.poll() is None:
            process.send_signal(number)
            time.sleep(0.01)
    ended = end_of(process)
    assert ended.code == 130, ended.err
    assert "Traceback" not in ended.err
    assert "Exception ignored" not in ended.err
    measurement = measurement_of(directory)
    assert errors(ended) == [f"ERROR: interrupted; what was measured is kept in {measurement.root}"]
    assert document(measurement.measurement)["status"] == "interrupted"
    assert json.loads(measurement.events.read_text().splitlines()[-1])["event"] == "run_finished"


def test_a_second_ctrl_c_does_not_wait(server: MisbehavingServer, job: Job) -> None:
    directory = job(service=PATIENT)
    preflight_hangs(server)
    process = start_command(
        "run", "--scenario", directory.root.parent / "scenario.json",
        before="import hitlab.signals; hitlab.signals.GRACE_SECONDS = 3600",
    )  # fmt: skip
    server.wait_until(lambda: server.seen["/v1/models"] >= 1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None, "the first one asks"
    process.send_signal(signal.SIGINT)
    ended = end_of(process)
    assert ended.code == 130
    assert document(measurement_of(directory).measurement)["status"] == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_data_is_prepared_leaves_no_half_file(
    server: MisbehavingServer, job: Job, number: signal.Signals
) -> None:
    directory = job()
    scenario = directory.root.parent / "scenario.json"
    stops = f"""
import os, time
import generator.prepare
generator.prepare.write_document = lambda *_: (os.kill(os.getpid(), {int(number)}), time.sleep(9))
"""
    output = directory.root.parent / "other"
    ended = end_of(
        start_command(
            "prepare", "--scenario", scenario, "--mode", "text", "--output-dir", output, before=stops
        )
    )
    assert ended.code == 130
    assert errors(ended) == ["ERROR: interrupted"]
    assert not list(directory.root.parent.glob("other*/result/*.manifest.json"))
    assert not list(directory.root.parent.glob("other*/result/.*"))


def test_a_killed_run_is_finished_by_analyze(hitlab: Hitlab, server: MisbehavingServer, job: Job) -> None:
    directory = job(service=PATIENT, driver=DRIVER)
    load_hangs(server)
    process = start_command("run", "--scenario", directory.root.parent / "scenario.json")
    server.wait_until(lambda: server.formal_requests >= 16)
    time.sleep(1.0)  # nothing more is answered; what was has to be on disk within this time
    measurement = measurement_of(directory)
    arguments = ("analyze", "--manifest", directory.manifest, "--measurement", measurement.stamp)

    early = hitlab(*arguments)
    assert early.code == 3
    assert "still going on" in errors(early)[0]
    assert document(measurement.measurement)["status"] == "running"

    process.kill()
    end_of(process)
    assert not measurement.requests.exists()
    assert sum(batch.num_rows for batch in read_stream(measurement.requests_stream)) == 12
    assert document(measurement.measurement)["status"] == "running"

    analyzed = hitlab(*arguments)
    assert analyzed.code == 130
    analysis = json.loads(analyzed.out)
    assert analysis["status"] == "interrupted"
    assert "RUN_CUT_SHORT" in {warning["code"] for warning in analysis["warnings"]}
    assert analysis["actual"]["global_hit_rate"] is None
    assert (analysis["actual"]["client"]["answered"], analysis["actual"]["failed_requests"]) == (
        12,
        REQUESTS - 12,
    )
    records = pq.read_table(measurement.requests)
    assert records.schema.equals(REQUEST_SCHEMA)
    assert records.num_rows == 12
    assert not measurement.requests_stream.exists()
    told = document(measurement.measurement)
    assert told["status"] == "interrupted"
    assert "in its formal phase" in told["error"]
    assert json.loads(measurement.events.read_text().splitlines()[-1])["event"] == "run_finished"
    assert json.loads(hitlab(*arguments).out) == analysis, "once finished, it stays as it is"
