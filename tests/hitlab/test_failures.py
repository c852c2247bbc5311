"""What goes wrong during a run, through the whole command: how it ends, what it says, and what is left."""

import itertools
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from contract.rows import read_rows
from contract.run_directory import MeasurementDirectory, RunDirectory
from runner.engines.engine import Engine
from runner.lock import engine_lock
from runner.settle import settled_scrape
from tests.hitlab.conftest import REQUESTS, Ended, Hitlab, Job, WriteScenario, document, errors, prepared
from tests.misbehaving_server import (
    METRICS,
    RESET,
    Fault,
    MisbehavingServer,
    answers,
    counter,
    dies,
    ends_early,
    from_here,
    hangs,
    leaves_out_usage,
    metrics,
    never_settling,
    replaces_event,
    resets,
    restarts,
    stalls,
    tells,
    times,
    without_rank,
)

QUERIES, HITS = "vllm:prefix_cache_queries", "vllm:prefix_cache_hits"
BACKWARDS = {"COUNTER_WENT_BACKWARDS"}


@pytest.fixture(autouse=True)
def quick_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.settle.POLL_SECONDS", 0.02)
    monkeypatch.setattr("runner.measure.SCRAPE_PAUSE_SECONDS", 0.02)


@pytest.fixture
def short_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.measure.settled_scrape", partial(settled_scrape, limit_seconds=0.5))


def run(hitlab: Hitlab, directory: RunDirectory) -> tuple[Ended, MeasurementDirectory]:
    ended = hitlab("run", "--scenario", directory.root.parent / "scenario.json")
    return ended, MeasurementDirectory(max(directory.runs.iterdir()))


def records_of(measurement: MeasurementDirectory) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = pq.read_table(measurement.requests).to_pylist()
    return records


def void_tokens(directory: RunDirectory, failed: set[int]) -> int:
    """Design, section 5: the row of a failure, and what comes after it in its lane."""
    void = 0
    broken = set()
    for row in read_rows(directory.full):
        lane = None if row["dp_rank"] is None else (row["group_id"], row["dp_rank"])
        if row["sequence_index"] in failed:
            broken.add(lane)
        if row["sequence_index"] in failed or (lane is not None and lane in broken):
            void += row["theoretical_hit_tokens"]
    return void


FAULTS: dict[str, tuple[Fault, str, str]] = {
    "reset": (resets(2), "reset", "closed the connection inside the answer"),
    "refused": (
        answers(400, b'{"error":{"message":"too long","type":"BadRequestError"}}'),
        "http",
        "HTTP 400: too long",
    ),
    "not found": (answers(404, b"no such page", "text/html"), "http", "HTTP 404: no such page"),
    "fault of the engine": (
        answers(500, b"Internal Server Error", "text/plain"),
        "http",
        "HTTP 500: Internal",
    ),
    "broken chunk": (replaces_event(1, b'data: {"choices": [\n\n'), "json", "a chunk is not JSON"),
    "broken answer": (answers(200, b"<html>"), "json", "the answer is not JSON"),
    "error in the stream": (
        replaces_event(1, b'data: {"error":{"message":"engine core died"}}\n\n'),
        "stream_error",
        "engine core died",
    ),
    "no usage": (leaves_out_usage(), "no_usage", "stream_options.include_usage"),
    "stall": (stalls(2), "timeout", "nothing came for 1 s"),
    "silence": (hangs, "timeout", "nothing came for 1 s"),
    "early end": (ends_early(2), "stream_error", "ended early, after 2 chunks"),
}


@pytest.mark.parametrize("mode", ["cold", "warmup"])
def test_failed_requests_are_classified_and_take_their_theory_along(
    hitlab: Hitlab, server: MisbehavingServer, job: Job, mode: str
) -> None:
    """One request at a time, so that the n-th to arrive is the n-th in the final order."""
    directory = job(mode, driver={"concurrency": 1, "timeout_seconds": 1.0})
    before = directory.analysis.read_bytes()
    expected = dict(zip(itertools.count(2, 2), FAULTS.values(), strict=False))
    server.formal = {position + 1: fault for position, (fault, _, _) in expected.items()}
    ended, measurement = run(hitlab, directory)
    records = records_of(measurement)
    assert len(records) == REQUESTS, "the others were sent all the same"
    failed = {record["position"]: record for record in records if record["error_kind"]}
    assert failed.keys() == expected.keys()
    for position, (_, kind, text) in expected.items():
        assert failed[position]["error_kind"] == kind
        assert text in failed[position]["error_text"]

    assert ended.code == 1
    (error,) = errors(ended)
    theory = sum(row["theoretical_hit_tokens"] for row in read_rows(directory.full))
    assert error.startswith(f"ERROR: {len(FAULTS)} requests failed")
    assert "2 x timeout: nothing came for 1 s after the last token; driver.timeout_seconds" in error
    assert f"{void_tokens(directory, set(failed))} of {theory} hit tokens" in error
    assert ended.out.startswith("Prefix Cache Results of task")
    assert ended.out.splitlines()[-1] == f"Detailed analysis is available at: {measurement.analysis}"
    assert document(measurement.measurement)["status"] == "partial"
    assert document(measurement.analysis)["status"] == "partial"
    assert directory.analysis.read_bytes() == before, "a partial measurement stays in its own folder"


def test_a_partial_measurement_never_displaces_a_complete_one(
    hitlab: Hitlab, server: MisbehavingServer, job: Job
) -> None:
    directory = job()
    assert run(hitlab, directory)[0].code == 0
    complete = directory.analysis.read_bytes()
    assert document(directory.analysis)["status"] == "complete"
    server.formal[REQUESTS + 3] = answers(503, b"{}")
    ended, measurement = run(hitlab, directory)
    assert ended.code == 1
    assert document(measurement.analysis)["status"] == "partial"
    assert directory.analysis.read_bytes() == complete


def test_counts_that_cannot_be_are_the_failure_of_their_request_and_lose_no_record(
    hitlab: Hitlab, server: MisbehavingServer, job: Job
) -> None:
    directory = job(driver={"concurrency": 1})
    server.formal = {
        3: tells("completion_tokens", 2**63),
        5: tells("completion_tokens", 10**6),
        7: tells("cached_tokens", 10**6),
    }
    ended, measurement = run(hitlab, directory)
    assert ended.code == 1, ended.err
    records = records_of(measurement)
    assert len(records) == REQUESTS
    failed = [record for record in records if record["error_kind"]]
    assert [record["position"] for record in failed] == [2, 4, 6]
    assert {record["error_kind"] for record in failed} == {"bad_usage"}
    assert [record["completion_tokens"] is None for record in failed] == [True, True, False]
    assert failed[2]["cached_tokens"] is None
    assert "3 x bad_usage: usage says 9.223e+18 completion_tokens, more than any request has" in ended.err


def test_a_repeated_request_is_answered_but_its_theory_is_void(
    hitlab: Hitlab, server: MisbehavingServer, job: Job
) -> None:
    directory = job(driver={"retries": 1})
    server.formal[5] = answers(503, b"busy", "text/plain")
    ended, measurement = run(hitlab, directory)
    assert ended.code == 0, ended.err
    analysis = document(measurement.analysis)
    actual = analysis["actual"]
    assert (actual["failed_requests"], actual["void_requests"]) == (0, 1)
    assert actual["failures"] == [{"kind": "http", "attempts": 1, "text": "HTTP 503: busy"}]
    (warning,) = [item for item in analysis["warnings"] if item["code"] == "ATTEMPTS_REPEATED"]
    assert "1 attempts were repeated after a failure (1 x http: HTTP 503: busy)" in warning["message"]
    assert analysis["validation"]["status"] == "PASS_WITH_WARNING"
    assert sorted(record["attempt"] for record in records_of(measurement)) == [1] * REQUESTS + [2]


@pytest.mark.parametrize("mode", ["cold", "warmup"])
def test_an_engine_that_dies_under_load_ends_the_run_soon_and_keeps_the_records(
    hitlab: Hitlab, server: MisbehavingServer, job: Job, mode: str
) -> None:
    directory = job(mode)
    server.formal[9] = dies
    begun = time.monotonic()
    ended, measurement = run(hitlab, directory)
    assert time.monotonic() - begun < 25, "no call waited for service.timeout_seconds (30)"
    assert ended.code == 1
    (error,) = errors(ended)
    records = records_of(measurement)
    assert len(records) == REQUESTS
    failed = {record["position"] for record in records if record["error_kind"]}
    assert {record["error_kind"] for record in records if record["error_kind"]} <= {"connect", "reset"}
    assert REQUESTS - len(failed) >= 5
    assert f"{len(failed)} requests failed" in error
    assert f"{void_tokens(directory, failed)} of " in error
    told = document(measurement.measurement)
    assert told["status"] == "partial"
    assert "AFTER_SCRAPE_MISSING" in {finding["code"] for finding in told["findings"]}
    assert not measurement.after.exists()
    analysis = document(measurement.analysis)
    assert analysis["actual"]["global_hit_rate"] is None
    assert "AFTER_SCRAPE_MISSING" in {warning["code"] for warning in analysis["warnings"]}
    assert analysis["runtime"]["metrics_after"] is None


@pytest.mark.parametrize(
    ("fault", "timeout_seconds", "said"),
    [
        (answers(500, b"oops", "text/plain"), 30, "HTTP 500"),
        (hangs, 2, "no complete answer within 2 s"),
        (answers(200, b"not {metrics", "text/plain"), 30, "/metrics"),
        (metrics(without_rank(1)), 30, "missing DP ranks: 1"),
    ],
    ids=["500", "hang", "garbage", "a rank less"],
)
def test_metrics_that_fail_after_the_load_leave_an_inconclusive_measurement(
    hitlab: Hitlab,
    server: MisbehavingServer,
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    timeout_seconds: float,
    said: str,
) -> None:
    monkeypatch.setattr("runner.measure.SCRAPE_ATTEMPTS", 2)
    directory = job(service={"timeout_seconds": timeout_seconds, "poll_interval_seconds": 0})
    server.formal[20] = from_here(METRICS, fault)
    ended, measurement = run(hitlab, directory)
    assert ended.code == 7, ended.err
    assert len(errors(ended)) == 1
    told = document(measurement.measurement)
    assert told["status"] == "partial"
    (finding,) = [finding for finding in told["findings"] if finding["code"] == "AFTER_SCRAPE_MISSING"]
    assert said in finding["message"]
    assert not any(record["error_kind"] for record in records_of(measurement))
    analysis = document(measurement.analysis)
    assert analysis["actual"]["global_hit_rate"] is None
    assert said in analysis["actual"]["reason"], "not that the run ended early"
    assert analysis["actual"]["client"]["cached_tokens"] == analysis["theory"]["hit_tokens"]


def test_pages_that_turn_into_another_engines_under_load_give_no_number(
    hitlab: Hitlab, server: MisbehavingServer, job: Job
) -> None:
    """As behind a balancer that got its second engine meanwhile."""
    directory = job(service={"poll_interval_seconds": 0})
    earlier = metrics(
        lambda text: re.sub(r"(?m)^process_start_time_seconds .*", "process_start_time_seconds 1.0", text)
    )
    server.formal[20] = from_here(METRICS, earlier)
    ended, measurement = run(hitlab, directory)
    assert ended.code == 7, ended.err
    (error,) = errors(ended)
    assert "went back from" in error
    assert "restart" not in ended.err
    analysis = document(measurement.analysis)
    assert analysis["actual"]["global_hit_rate"] is None
    codes = {warning["code"] for warning in analysis["warnings"]}
    assert codes >= {"METRICS_NOT_THIS_ENGINE"}
    assert not codes & {"AFTER_SCRAPE_MISSING", "FOREIGN_TRAFFIC", "ENGINE_RESTARTED"}


def test_one_failed_scrape_after_the_load_costs_nothing(
    hitlab: Hitlab, server: MisbehavingServer, job: Job
) -> None:
    directory = job(service={"poll_interval_seconds": 0})
    server.formal[20] = from_here(METRICS, times(1, answers(503, b"", "text/plain")))
    ended, measurement = run(hitlab, directory)
    assert ended.code == 0, ended.err
    assert document(measurement.measurement)["status"] == "complete"


def foreign(text: str) -> str:
    """Somebody else's prompt of 160 tokens, in every counter that sees prompts."""
    for name in (
        QUERIES,
        "vllm:prompt_tokens",
        "vllm:request_prompt_tokens_sum",
        "vllm:request_prefill_kv_computed_tokens_sum",
    ):
        text = counter(name, lambda value: value + 160)(text)
    return text


@pytest.mark.parametrize(
    ("fault", "codes"),
    [
        (metrics(lambda text: counter(HITS, lambda _: 1)(counter(QUERIES, lambda _: 2)(text))), BACKWARDS),
        (metrics(counter(QUERIES, lambda value: value + 160)), {"COUNTERS_NOT_SETTLED"}),
        (metrics(foreign), {"FOREIGN_TRAFFIC"}),
    ],
    ids=["backwards", "lookups alone", "foreign"],
)
def test_counters_that_cannot_be_ours_are_findings(
    hitlab: Hitlab,
    server: MisbehavingServer,
    job: Job,
    short_settling: None,
    fault: Fault,
    codes: set[str],
) -> None:
    directory = job()
    server.formal[20] = from_here(METRICS, fault)
    ended, measurement = run(hitlab, directory)
    assert ended.code in (0, 7)
    warned = {warning["code"] for warning in document(measurement.analysis)["warnings"]}
    assert ("foreign traffic" in ended.err) is ("FOREIGN_TRAFFIC" in codes), "three ledgers speak against it"
    assert codes <= warned
    assert document(measurement.measurement)["settled"] is False


def test_counters_that_never_stand_still_are_a_finding_after_a_limited_wait(
    hitlab: Hitlab,
    server: MisbehavingServer,
    job: Job,
    short_settling: None,
) -> None:
    directory = job()
    server.formal[20] = from_here(METRICS, metrics(never_settling(QUERIES)))
    ended, measurement = run(hitlab, directory)
    assert ended.code in (0, 7)
    told = document(measurement.measurement)
    assert told["settled"] is False
    assert {finding["code"] for finding in told["findings"]} & {"FOREIGN_TRAFFIC", "COUNTERS_NOT_SETTLED"}


ENDINGS: dict[str, tuple[int, Fault | None, int, str, str | None]] = {
    "all is well": (1, None, 0, "complete", "PASS"),
    "a failed request": (7, answers(503, b"{}"), 1, "partial", "PASS_WITH_WARNING"),
    "counters that do not settle": (
        20,
        from_here(METRICS, metrics(counter(QUERIES, lambda value: value - 1))),
        0,
        "complete",
        "PASS_WITH_WARNING",
    ),
    "no counters": (
        20,
        from_here(METRICS, answers(500, b"", "text/plain")),
        7,
        "partial",
        "PASS_WITH_WARNING",
    ),
    "no reset": (0, None, 4, "failed", None),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_run_measure_only_and_analyze_end_alike(
    hitlab: Hitlab,
    server: MisbehavingServer,
    job: Job,
    short_settling: None,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    position, fault, code, status, verdict = ENDINGS[name]
    monkeypatch.setattr("runner.measure.SCRAPE_ATTEMPTS", 1)
    monkeypatch.setattr("runner.reset.PAUSE_SECONDS", 0.01)
    # One at a time: on a busy machine more would not be reached, which is a warning of its own.
    directory = job(service={"poll_interval_seconds": 0}, driver={"concurrency": 1})
    scenario = directory.root.parent / "scenario.json"
    measured = []
    for only in ([], ["--measure-only"]):
        server.instead = {RESET: answers(500, b"no")} if name == "no reset" else {}
        server.formal = {} if fault is None else {server.formal_requests + position: fault}
        ended = hitlab("run", "--scenario", scenario, *only)
        assert ended.code == code, ended.err
        measured.append(MeasurementDirectory(max(directory.runs.iterdir())))
    assert ended.out == f"{measured[1].root}\n", "the path is printed, however it ends"
    assert document(measured[1].measurement)["status"] == status
    for measurement in measured:
        again = hitlab("analyze", "--manifest", directory.manifest, "--measurement", measurement.stamp)
        assert again.code == code, again.err
        if verdict is None:
            assert (again.out, measurement.analysis.exists()) == ("", False)
            assert "holds no requests; the run ended in its reset phase" in errors(again)[0]
            continue
        analysis = document(measurement.analysis)
        assert analysis["validation"]["status"] == verdict
        codes = [warning["code"] for warning in analysis["warnings"]]
        assert codes.count("COUNTERS_NOT_SETTLED") == (name == "counters that do not settle")


def test_an_engine_that_restarts_under_load_gives_no_hit_rate(
    hitlab: Hitlab, server: MisbehavingServer, job: Job, short_settling: None
) -> None:
    directory = job()
    server.formal[23] = restarts
    ended, measurement = run(hitlab, directory)
    analysis = document(measurement.analysis)
    assert ended.code != 0 or analysis["actual"]["global_hit_rate"] is None
    assert analysis["actual"]["global_hit_rate"] is None
    codes = [warning["code"] for warning in analysis["warnings"]]
    assert sum(code in ("COUNTER_WENT_BACKWARDS", "ENGINE_RESTARTED") for code in codes) == 1


def test_a_restart_whose_counters_are_higher_again_gives_no_hit_rate_either(
    hitlab: Hitlab, server: MisbehavingServer, job: Job, short_settling: None
) -> None:
    directory = job()

    def began(at: float) -> Fault:
        return metrics(lambda text: re.sub(r"(?m)^(process_start_time_seconds) .*$", rf"\1 {at}", text))

    server.instead[METRICS] = began(1000.0)
    server.formal[23] = from_here(METRICS, began(2000.0))
    ended, measurement = run(hitlab, directory)
    assert ended.code == 7, ended.err
    analysis = document(measurement.analysis)
    assert analysis["actual"]["global_hit_rate"] is None
    assert "process start time changed" in analysis["actual"]["reason"]
    assert "ENGINE_RESTARTED" in {warning["code"] for warning in analysis["warnings"]}
    assert analysis["actual"]["client"]["cached_tokens"] == analysis["theory"]["hit_tokens"]
    assert "Hit Rate by Cached Tokens of Answers" in ended.out


@pytest.mark.parametrize("refusals", [3, 1000])
def test_a_reset_that_does_not_succeed_is_tried_again_with_a_limit(
    hitlab: Hitlab,
    server: MisbehavingServer,
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    refusals: int,
) -> None:
    monkeypatch.setattr("runner.reset.PAUSE_SECONDS", 0.01)
    directory = job()
    server.instead[RESET] = times(refusals, answers(200, b'{"success":false}'))
    ended, measurement = run(hitlab, directory)
    if refusals == 3:
        assert ended.code == 0, ended.err
    else:
        assert ended.code == 4
        (error,) = errors(ended)
        assert "success" in error
        assert server.formal_requests == 0
        assert document(measurement.measurement)["status"] == "failed"


def test_a_warmup_that_fails_ends_the_run_at_once(
    hitlab: Hitlab, server: MisbehavingServer, job: Job
) -> None:
    directory = job()
    # Whatever comes after the reset and does not stream is a warmup or a probe of the reset.
    server.instead[RESET] = from_here("/v1/completions", answers(500, b'{"error":"no"}'))
    ended, measurement = run(hitlab, directory)
    assert ended.code == 4
    (error,) = errors(ended)
    assert "500" in error
    assert server.formal_requests == 0
    assert not measurement.requests.exists()


@pytest.mark.parametrize("name", ["full", "requests", "token_ids", "manifest"])
@pytest.mark.parametrize("named", [False, True], ids=["newest", "named"])
def test_artifacts_changed_after_prepare_are_not_sent(
    hitlab: Hitlab, server: MisbehavingServer, job: Job, name: str, named: bool
) -> None:
    directory = job()
    path = getattr(directory, name)
    content = bytearray(path.read_bytes())
    if name == "manifest":
        content = content.replace(b'"count": 24', b'"count": 25', 1)
    else:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)
    scenario = directory.root.parent / "scenario.json"
    ended = hitlab("run", "--scenario", scenario, *(("--manifest", directory.manifest) if named else ()))
    assert ended.code == 3
    (error,) = errors(ended)
    assert path.name in error
    assert server.formal_requests == 0
    assert not directory.runs.exists()


def test_a_run_never_holds_an_engine_that_another_has_under_another_name(
    hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    path = write_scenario(engine_url)
    prepared(hitlab, path)
    other_name = engine_url.replace("127.0.0.1", "localhost")
    held = Engine("external", f"{other_name}/v1/completions", (f"{other_name}/metrics",), None, "m", 2)
    with engine_lock(held, tmp_path / "elsewhere", "the-first"):
        ended = hitlab("run", "--scenario", path)
    assert ended.code == 4
    (error,) = errors(ended)
    assert "run the-first (process" in error
    assert ended.out == ""
