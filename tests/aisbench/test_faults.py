"""What goes wrong with single requests is the same for both drivers, and AISBench's own counts agree with the records."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from prompts.tokenizer import load_tokenizer
from simulator.config import SimulatorConfig
from tests.aisbench.conftest import MakeJob
from tests.aisbench.scenarios import records, simulated
from tests.misbehaving_server import (
    Fault,
    MisbehavingServer,
    answers,
    ends_early,
    leaves_out_usage,
    misbehaving_server,
    replaces_event,
    resets,
    stalls,
)

# By request; all of them do not come at the end, and some rows of their lanes follow.
FAULTS: dict[int, Fault] = {
    3: answers(500, b'{"error": {"message": "out of order"}}'),
    6: answers(400, b'{"error": "no"}'),
    9: resets(after_events=1),
    12: replaces_event(0, b'data: {"error": {"message": "out of memory"}}'),
    15: replaces_event(0, b"data: {half"),
    18: ends_early(after_events=1),
    21: leaves_out_usage(),
    24: stalls(after_events=1),
    27: answers(200, b"<html>", "text/html"),
}
SEEN = ("position", "attempt", "http_status", "error_kind", "prompt_tokens", "cached_tokens", "chunks")


def sent_by(driver: str, make_job: MakeJob, server: MisbehavingServer) -> tuple[Any, list[tuple[Any, ...]]]:
    server.formal = dict(FAULTS)
    server.formal_requests = 0
    document = simulated(
        server.url,
        requests={
            "count": 30,
            "input_length": {"mode": "fixed", "value": 128},
            "output_length": {"mode": "fixed", "value": 4},
        },
        aisbench={"model": {"batch_size": 1, "retry": 0}},
        driver={"kind": driver, "timeout_seconds": 3},
    )
    run = make_job(document, driver).run()
    return run, [tuple(row[name] for name in SEEN) for row in records(run.measured)]


def test_every_kind_of_failure(make_job: MakeJob) -> None:
    config = SimulatorConfig.model_validate({"block_size": 16})
    with misbehaving_server(config, load_tokenizer("builtin:demo")) as server:
        native, expected = sent_by("native", make_job, server)
        run, seen = sent_by("aisbench", make_job, server)
    assert native.code == run.code == 1, run.err
    assert seen == expected
    assert sum(row[3] is not None for row in seen) == len(FAULTS)
    measurement = run.measurement
    assert measurement["status"] == "partial"
    assert measurement["load"]["failed"] == measurement["aisbench"]["failed_requests"] == len(FAULTS)
    assert "AISBENCH_COUNTS_DIFFER" not in [finding["code"] for finding in measurement["findings"]]


def test_retries_are_new_attempts(make_job: MakeJob) -> None:
    config = SimulatorConfig.model_validate({"block_size": 16})
    with misbehaving_server(config, load_tokenizer("builtin:demo")) as server:
        server.formal = {2: answers(503, b"{}"), 3: answers(503, b"{}"), 8: answers(400, b"{}")}
        run = make_job(simulated(server.url, aisbench={"model": {"retry": 2, "batch_size": 1}})).run()
    assert run.code == 1
    by_row: dict[int, list[int]] = {}
    for row in records(run.measured):
        by_row.setdefault(row["position"], []).append(row["http_status"])
    assert [statuses for statuses in by_row.values() if statuses != [200]] == [[503, 503, 200], [400]]
    load = run.measurement["load"]
    assert (load["retries"], load["retried"], load["failed"], load["finished"]) == (2, 2, 1, 39)


def test_a_hitlab_that_is_killed_takes_aisbench_with_it(make_job: MakeJob, tmp_path: Path) -> None:
    config = SimulatorConfig.model_validate({"block_size": 16, "decode_tokens_per_second": 5})
    with misbehaving_server(config, load_tokenizer("builtin:demo")) as server:
        job = make_job(simulated(server.url), TMPDIR=str(tmp_path))

        def kill(running: "subprocess.Popen[str]") -> None:
            server.wait_until(lambda: server.formal_requests > 2 or running.poll() is not None)
            os.kill(running.pid, signal.SIGKILL)

        run = job.run(meanwhile=kill)
    assert run.code == -signal.SIGKILL
    deadline = time.monotonic() + 5
    while left := _command_lines_with(str(tmp_path)):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def _command_lines_with(text: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it ended while we looked
        if text in line:
            found.append(line)
    return found
