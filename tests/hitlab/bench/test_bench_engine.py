"""`hitlab bench engine` from the command line to its files. The simulator's block pool is the judge of the cache."""

import asyncio
import csv
import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from contract.errors import ScenarioError
from runner.engines.engine import Engine
from runner.lock import engine_lock
from tests.hitlab.bench.conftest import CHAT, WORKLOADS, Bench, summary_of
from tests.hitlab.conftest import Hitlab, end_of, errors, start_command
from tests.misbehaving_server import (
    METRICS,
    Fault,
    MisbehavingServer,
    answers,
    hangs,
    leaves_out_usage,
    resets,
    times,
)

REQUESTS = {
    "long-doc-qa": (4, 8),
    "multi-round-chat": (3, 10),
    "long-doc-permutator": (1, 10),
    "prefix-suffix-tuner": (4, 3),
    "random-prefill": (0, 10),
    "kv-tier-pressure": (4, 12),
}
SHARES = {
    "long-doc-qa": (0.9, 1),
    "multi-round-chat": (0.85, 1),
    "long-doc-permutator": (0.2, 0.9),
    "prefix-suffix-tuner": (0.75, 0.85),
    "random-prefill": (0, 0),
    "kv-tier-pressure": (0.3, 0.95),
}


def codes(summary: dict[str, Any]) -> list[str]:
    return [warning["code"] for warning in summary["warnings"]]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_is_as_the_block_model_expects(
    bench: Bench, engine: str, tmp_path: Path, workload: str
) -> None:
    ended = bench(engine, workload, "--reset-cache")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("=") and "\x1b" not in ended.out + ended.err  # noqa: PT018
    summary = summary_of(tmp_path)
    notes = (
        {"BENCH_NOTE"} if workload == "kv-tier-pressure" else set()
    )  # the pool is far smaller than the tier
    assert set(codes(summary)) - {"RATE_NOT_REACHED"} == notes, "a busy machine may be late"
    warm, measured = REQUESTS[workload]
    assert summary["results"]["successful_requests"] == measured
    evidence = {entry["stage"]: entry for entry in summary["cache"]}
    assert set(evidence) == ({"warmup", "formal"} if warm else {"formal"})
    for stage, count in (("warmup", warm), ("formal", measured)):
        if not count:
            continue
        found = evidence[stage]
        assert (found["compared"], found["as_predicted"]) == (count, count), found["differing"]
        assert (
            found["predicted_least"]
            <= found["hit_tokens"]
            == found["cached_tokens"]
            <= found["predicted_most"]
        )
        assert found["query_tokens"] == found["prompt_tokens"]
        if workload != "multi-round-chat":
            assert found["predicted_least"] == found["predicted_most"]
    least, most = SHARES[workload]
    assert least <= evidence["formal"]["hit_tokens"] / evidence["formal"]["query_tokens"] <= most
    assert all(r["prompt_tokens"] == r["planned_prompt_tokens"] for r in summary["requests"])
    rows = list(csv.DictReader((tmp_path / "bench_results.csv").open()))
    assert sorted(row["request_id"] for row in rows) == sorted(r["request_id"] for r in summary["requests"])
    directory = next(tmp_path.glob("bench-*"))
    run = next(directory.glob("result/runs/*"))
    assert pq.read_table(run / "requests.parquet").num_rows == measured
    assert (run / "report.html").stat().st_size > 5000
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    phases = [event["phase"] for event in events if event["event"] == "phase_started"]
    middle = ["warmup"] if warm else []
    assert phases == ["precheck", "reset", *middle, "baseline", "formal", "settle", "after"]
    assert events[-1]["event"] == "run_finished"


def test_quiet_keeps_the_summary_and_nothing_else(bench: Bench, engine: str, tmp_path: Path) -> None:
    ended = bench(engine, "random-prefill", "-q", "--no-csv", "--reset-cache", json_summary=False)
    assert "Mean TTFT (ms):" in ended.out
    assert [line for line in ended.err.splitlines() if not line.endswith("written")] == []
    assert not (tmp_path / "bench_results.csv").exists()
    assert not (tmp_path / "bench_summary.json").exists()


def test_a_cache_that_is_not_clean_is_said(bench: Bench, engine: str, tmp_path: Path) -> None:
    bench(engine, "random-prefill", "--reset-cache")
    ended = bench(engine, "random-prefill")
    assert ended.code == 0
    assert codes(summary_of(tmp_path)) == ["CONTAMINATED"]
    assert "WARNING: CONTAMINATED: formal: " in ended.err
    assert bench(engine, "random-prefill", "--seed", "43").code == 0
    assert codes(summary_of(tmp_path)) == [], "another seed makes other texts"


def test_a_cold_start_of_the_tuner_is_marked(bench: Bench, engine: str, tmp_path: Path) -> None:
    ended = bench(engine, "prefix-suffix-tuner", "--no-warmup", "--reset-cache")
    summary = summary_of(tmp_path)
    assert codes(summary) == ["NO_WARMUP"]
    assert "not meaningful" in ended.err
    assert summary["config"]["warmup_policy"] == "skip"
    assert summary["skipped_phases"] == ["one request for the engine's first costs", "pass 1"]
    assert summary["cache"][0]["hit_tokens"] == 0
    assert "skipped (--no-warmup)" in ended.out


def test_a_warm_phase_that_did_not_hit_is_said(
    broken: MisbehavingServer, bench: Bench, tmp_path: Path
) -> None:
    """Somebody empties the cache between the phases."""
    seen = 0

    async def emptied(server: MisbehavingServer, request: Any, response: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == 5:
            server.app.engine.reset(reset_running=False)
        await server.app(request, response)

    broken.instead[CHAT] = emptied
    ended = bench(
        broken.url, "long-doc-qa", "--ldqa-query-per-document", "1", "--ldqa-num-inflight-requests", "1"
    )
    assert ended.code == 0
    summary = summary_of(tmp_path)
    assert "REUSE_MISSING" in codes(summary)
    assert "tokens that should have been in the cache 0 were found" in ended.err
    assert summary["cache"][1]["differing"]


# ---- failures


def test_failures_are_counted_by_class_and_never_retried(
    broken: MisbehavingServer, bench: Bench, tmp_path: Path
) -> None:
    broken.instead[CHAT] = times(3, answers(500, b'{"error": {"message": "out of luck"}}'))
    ended = bench(broken.url, "random-prefill")
    assert ended.code == 1
    assert broken.seen[CHAT] == 10, "ten requests, ten POSTs"
    summary = summary_of(tmp_path)
    results = summary["results"]
    assert (results["successful_requests"], results["failed_requests"], summary["errors"]) == (
        7,
        3,
        {"http": 3},
    )
    assert summary["status"] == "partial"
    assert "ERROR: 3 requests failed" in ended.err
    rows = list(csv.DictReader((tmp_path / "bench_results.csv").open()))
    broken_rows = [row for row in rows if row["successful"] == "False"]
    assert {row["error"] for row in broken_rows} == {"HTTP 500: out of luck"}
    assert {row["ttft"] for row in broken_rows} == {""}


WARM_FAULTS: dict[str, Fault] = {
    "busy": answers(429, b'{"error": {"message": "slow down"}}'),
    "refused": answers(400, b'{"error": {"message": "too long"}}'),
    "garbage": answers(200, b"<html>", "text/html"),
    "no usage": leaves_out_usage(),
}


@pytest.mark.parametrize("fault", WARM_FAULTS)
def test_a_failed_warm_request_is_a_failed_request(
    broken: MisbehavingServer, bench: Bench, tmp_path: Path, fault: str
) -> None:
    broken.instead[CHAT] = times(1, WARM_FAULTS[fault])
    ended = bench(broken.url, "long-doc-qa")
    assert ended.code == 1, ended.err
    summary = summary_of(tmp_path)
    assert (summary["status"], summary["validation"]["status"]) == ("partial", "PASS_WITH_WARNING")
    assert summary["results"]["failed_requests"] == 0, "the result is of the measured phase"
    assert "WARM_REQUESTS_FAILED" in codes(summary)
    (error,) = errors(ended)
    assert error.startswith("ERROR: 1 requests failed (1 in ")


def test_a_broken_stream_and_a_stall(broken: MisbehavingServer, bench: Bench, tmp_path: Path) -> None:
    broken.instead[CHAT] = times(1, resets(0))
    assert bench(broken.url, "random-prefill").code == 1
    assert summary_of(tmp_path)["errors"] == {"reset": 1}
    broken.instead[CHAT] = times(1, hangs)
    begun = time.monotonic()
    assert bench(broken.url, "random-prefill", "--timeout", "0.5").code == 1
    assert time.monotonic() - begun < 20
    assert summary_of(tmp_path)["errors"] == {"timeout": 1}


def test_an_engine_that_goes_away_leaves_a_summary(
    broken: MisbehavingServer, bench: Bench, tmp_path: Path
) -> None:
    left = 4

    async def dies_after_four(server: MisbehavingServer, request: Any, response: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            server.die()
            return
        await server.app(request, response)

    broken.instead[CHAT] = dies_after_four
    ended = bench(broken.url, "long-doc-permutator")
    assert ended.code == 1, ended.err
    summary = summary_of(tmp_path)
    assert summary["results"]["successful_requests"] == 3
    assert "AFTER_SCRAPE_MISSING" in codes(summary)
    assert "does not tokenize any more" in summary["cache"][1]["unavailable"]["predicted"]
    assert "Traceback" not in ended.err


def test_an_engine_without_metrics(broken: MisbehavingServer, bench: Bench, tmp_path: Path) -> None:
    broken.instead[METRICS] = answers(404, b"{}")
    ended = bench(broken.url, "long-doc-qa")
    assert ended.code == 0, ended.err
    found = summary_of(tmp_path)["cache"][1]
    assert (found["hit_tokens"], found["predicted_least"]) == (None, None)
    assert "/metrics" in found["unavailable"]["hit_tokens"]
    assert found["cached_tokens"] > 0
    assert "not measured" in ended.out


def test_an_engine_that_does_not_tokenize(broken: MisbehavingServer, bench: Bench, tmp_path: Path) -> None:
    broken.instead["/tokenize"] = answers(404, b"{}")
    ended = bench(broken.url, "random-prefill", "--tokenizer", "builtin:demo")
    assert ended.code == 0, ended.err
    summary = summary_of(tmp_path)
    assert summary["tokenizer"] == "builtin:demo"
    assert "no /tokenize" in summary["cache"][0]["unavailable"]["predicted"]
    overheads = {request["prompt_tokens"] - 300 for request in summary["requests"]}
    assert len(overheads) == 1, "every text has its length, and the template costs the same in all"


@pytest.mark.parametrize(
    ("workload", "asked"),
    [("long-doc-qa", 700), ("multi-round-chat", 800), ("prefix-suffix-tuner", 800), ("random-prefill", 300)],
)
def test_without_any_tokenizer_a_bench_goes_on_with_about_the_lengths(
    broken: MisbehavingServer, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: str, asked: int
) -> None:  # fmt: skip
    monkeypatch.setattr("prompts.tokenizer._download", no_hub)
    broken.instead["/tokenize"] = answers(404, b"{}")
    ended = bench(broken.url, workload, "--reset-cache")
    assert ended.code == 0, ended.err
    summary = summary_of(tmp_path)
    assert summary["tokenizer"].startswith("none (0.")
    assert [w["message"][:32] for w in summary["warnings"] if w["code"] == "BENCH_NOTE"] == [
        "lengths are about those asked fo"
    ]
    for evidence in summary["cache"]:
        assert (evidence["predicted_least"], evidence["predicted_most"]) == (None, None)
        assert "no /tokenize" in evidence["unavailable"]["predicted"]
    assert re.search(r"Expected \(block model\): +not measured", ended.out)
    first = summary["requests"][0]["prompt_tokens"]
    assert 0.85 * asked < first < 1.25 * asked + 60, "with template and question"
    if workload != "random-prefill":
        assert summary["cache"][1]["hit_tokens"] > 0.6 * summary["cache"][1]["query_tokens"]


def test_workloads_of_exact_lengths_are_refused_without_a_tokenizer(
    broken: MisbehavingServer, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prompts.tokenizer._download", no_hub)
    broken.instead["/tokenize"] = answers(404, b"{}")
    ended = bench(broken.url, "kv-tier-pressure")
    assert ended.code == 2
    assert "'demo' is no tokenizer on this machine or on the model hub" in ended.err
    assert broken.seen[CHAT] == 0


def no_hub(repository: str, _revision: str | None) -> Path:
    raise ScenarioError(f"the model hub did not give {repository}")


def test_an_engine_that_counts_is_asked_for_several_texts_at_once(
    broken: MisbehavingServer, bench: Bench
) -> None:
    """All of the first round of words has to be there before anything is answered."""
    waiting = 0
    together = asyncio.Event()

    async def in_parallel(server: MisbehavingServer, request: Any, response: Any) -> None:
        nonlocal waiting
        if server.seen["/tokenize"] > 1:  # the first one asks whether it is there at all
            waiting += 1
            if waiting == 4:
                together.set()
            await together.wait()
        await server.app(request, response)

    broken.instead["/tokenize"] = in_parallel
    assert bench(broken.url, "long-doc-qa", "-q").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--engine-url", "http://127.0.0.1:9", "--workload", "random-prefill"], 4, "cannot be reached"),
        (["--engine-url", "http://127.0.0.1:9"], 2, "missing --workload"),
        ([], 2, "missing --engine-url, --workload"),
        (["--no-interactive"], 2, "missing --engine-url, --workload"),
        (["--engine-url", "ftp://x", "--workload", "random-prefill"], 2, "is not an address"),
        (["--workload", "chess"], 2, "'chess' is not one of 'long-doc-qa'"),
        (["--engine-url", "x", "--workload", "random-prefill", "--colour", "red"], 2, "--colour"),
        (
            [
                "--engine-url",
                "x",
                "--workload",
                "rag-qa-quality",
                "--rag-dataset",
                "y",
                "--rag-output",
                "no/where.json",
            ],
            2,
            "there is no folder",
        ),
    ],
)
def test_usage(hitlab: Hitlab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int,
               message: str) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    ended = hitlab("bench", "engine", *arguments)
    assert ended.code == code
    assert message in "".join(errors(ended))
    assert len(errors(ended)) == 1
    assert list(tmp_path.iterdir()) == [], "nothing is left of a bench that never began"


def test_missing_arguments_at_the_end_of_the_input_are_an_error() -> None:
    process = start_command("bench", "engine", stdin=subprocess.DEVNULL)
    ended = end_of(process)
    assert ended.code == 2
    assert "missing --engine-url, --workload" in ended.err


def test_prompts_that_do_not_fit_are_refused_before_anything_is_sent(
    broken: MisbehavingServer, bench: Bench, tmp_path: Path
) -> None:
    ended = bench(broken.url, "random-prefill", "--rp-request-length", "9000")
    assert ended.code == 2
    assert re.search(r"req\d+ has at least 8193 tokens and may answer 1, the engine takes 8192", ended.err)
    assert broken.seen[CHAT] == 0
    assert not list(tmp_path.glob("bench*"))


def test_a_rate_that_is_not_reached_is_said(broken: MisbehavingServer, bench: Bench, tmp_path: Path) -> None:
    """The fault of the original: 25 asked for, 10 sent, and nothing said."""

    async def slow(server: MisbehavingServer, request: Any, response: Any) -> None:
        import asyncio

        await asyncio.sleep(0.2)
        await server.app(request, response)

    broken.instead[CHAT] = slow
    more = ["--mrc-qps", "20", "--mrc-duration", "1", "--kv-cache-volume", "0.2", "--mrc-output-length", "2"]
    ended = bench(broken.url, "multi-round-chat", *more)
    assert ended.code == 0
    summary = summary_of(tmp_path)
    assert codes(summary) == ["RATE_NOT_REACHED"]
    load = summary["load"]
    assert load["planned_requests"] == 20
    assert load["not_sent"] == 20 - summary["results"]["total_requests"] > 5
    assert load["reached_rate"] < 10
    assert "Reached rate (req/s):" in ended.out


# ---- interruption


def test_ctrl_c_keeps_rows_and_a_summary(broken: MisbehavingServer, tmp_path: Path) -> None:
    answered = 0

    async def stuck_after_six(server: MisbehavingServer, request: Any, response: Any) -> None:
        nonlocal answered
        answered += 1
        await (hangs if answered > 6 else server.app)(*((server,) if answered > 6 else ()), request, response)

    broken.instead[CHAT] = stuck_after_six
    process = start_command(
        *(
            "bench",
            "engine",
            "--engine-url",
            broken.url,
            "--workload",
            "long-doc-qa",
            *WORKLOADS["long-doc-qa"],
        ),
        *("--output-dir", tmp_path, "--json"),
    )
    broken.wait_until(lambda: broken.seen[CHAT] >= 8)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    ended = end_of(process)
    assert ended.code == 130, ended.err
    summary = summary_of(tmp_path)
    assert summary["status"] == "interrupted"
    assert summary["results"]["successful_requests"] == 2
    assert set(summary["errors"]) == {"aborted"}
    assert [entry["stage"] for entry in summary["cache"]] == ["warmup", "formal"]
    assert summary["cache"][1]["cached_tokens"] > 0
    assert "(long-doc-qa, interrupted)" in ended.out
    rows = list(csv.DictReader((tmp_path / "bench_results.csv").open()))
    assert sum(row["successful"] == "True" for row in rows) == 2
    assert "Traceback" not in ended.err
    assert len(errors(ended)) == 1
    assert "interrupted; what was measured is kept in" in ended.err


# ---- configuration


def test_export_sends_no_load_and_the_file_replays(
    broken: MisbehavingServer, bench: Bench, hitlab: Hitlab, tmp_path: Path
) -> None:
    ended = bench(broken.url, "long-doc-permutator", "--export-config", "c.json", "--seed", "5")
    assert (ended.code, ended.out) == (0, "c.json\n")
    assert broken.seen[CHAT] == 0
    config = json.loads((tmp_path / "c.json").read_text())
    assert (config["model"], config["seed"], config["ldp_context_length"]) == ("demo", 5, 200)
    assert broken.url not in (tmp_path / "c.json").read_text()
    again = hitlab("bench", "engine", "--engine-url", broken.url, "--config", "c.json", "--json")
    assert again.code == 0, again.err
    first = summary_of(tmp_path)
    bench(broken.url, "long-doc-permutator", "--seed", "5")
    assert summary_of(tmp_path)["fingerprint"] == first["fingerprint"]
    bench(broken.url, "long-doc-permutator", "--seed", "6")
    assert summary_of(tmp_path)["fingerprint"] != first["fingerprint"]


# ---- watching, analysing, comparing


def test_watch_and_analyze_take_benches(bench: Bench, hitlab: Hitlab, engine: str, tmp_path: Path) -> None:
    bench(engine, "random-prefill", "--reset-cache")
    before = summary_of(tmp_path)
    manifest = next(tmp_path.glob("bench-*/result/*.manifest.json"))
    run = next(tmp_path.glob("bench-*/result/runs/*"))
    (run / "analysis.json").unlink()
    (run / "report.html").unlink()
    watched = hitlab("watch", "--artifacts", tmp_path, "--once")
    assert watched.code == 0
    assert "cannot be read" not in watched.err
    assert json.loads((run / "analysis.json").read_text()) == before
    analyzed = hitlab("analyze", "--manifest", manifest, "--measurement", run.name)
    assert analyzed.code == 0
    assert json.loads(analyzed.out) == before
    table = hitlab("analyze", "--manifest", manifest, "--measurement", run.name, "--table")
    assert "Engine Benchmark Result (random-prefill)" in table.out.splitlines()[0]
    assert hitlab("analyze", "--manifest", manifest, "--baseline", "a", "--after", "b").code == 2


@pytest.mark.parametrize("command", ["report", "validate"])
def test_commands_for_prepared_data_say_that_a_bench_has_none(
    bench: Bench, hitlab: Hitlab, engine: str, tmp_path: Path, command: str
) -> None:
    bench(engine, "random-prefill", json_summary=False)
    ended = hitlab(command, "--manifest", next(tmp_path.glob("bench-*/result/*.manifest.json")))
    assert ended.code == 3
    assert "is that of a bench" in errors(ended)[0]


def test_compare(bench: Bench, hitlab: Hitlab, engine: str, tmp_path: Path) -> None:
    for name, more in (("a", []), ("b", []), ("c", ["--seed", "3"]), ("d", ["--no-warmup"])):
        bench(engine, "long-doc-permutator", "--reset-cache", *more)
        (tmp_path / "bench_summary.json").rename(tmp_path / f"{name}.json")
    same = hitlab("bench", "compare", "a.json", "b.json", "--json")
    assert same.code == 0
    found = json.loads(same.out)
    assert found["paired"] == 10
    assert found["metrics"]["cached_tokens"]["mean_difference"] == 0
    assert "ttft_ms" in hitlab("bench", "compare", "a.json", "b.json").out
    other = hitlab("bench", "compare", "a.json", "c.json")
    assert other.code == 3
    assert "seed 42 and 3" in other.err
    cold = hitlab("bench", "compare", "a.json", "d.json")
    assert cold.code == 3
    assert "warmup policy run and skip" in cold.err


# ---- secrets


def test_the_key_is_sent_and_never_written(
    hitlab: Hitlab, locked_engine_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.hitlab.conftest import API_KEY

    monkeypatch.chdir(tmp_path)
    arguments = [
        "--engine-url",
        locked_engine_url,
        "--workload",
        "random-prefill",
        *WORKLOADS["random-prefill"],
    ]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    refused = hitlab("bench", "engine", *arguments)
    assert refused.code == 4
    assert "OPENAI_API_KEY" in refused.err
    monkeypatch.setenv("OPENAI_API_KEY", API_KEY)
    ended = hitlab("bench", "engine", *arguments, "--json")
    assert ended.code == 0, ended.err
    summary = summary_of(tmp_path)
    assert "2 data-parallel ranks" in json.dumps(summary["cache"])
    assert all(
        request["planned_prompt_tokens"] == request["prompt_tokens"] for request in summary["requests"]
    )
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or API_KEY.encode() not in path.read_bytes(), path
    assert API_KEY not in ended.out + ended.err


def test_a_bench_never_holds_an_engine_that_a_run_has_under_another_name(
    bench: Bench, engine: str, tmp_path: Path
) -> None:
    other_name = engine.replace("127.0.0.1", "localhost")
    held = Engine("external", f"{other_name}/v1/completions", (f"{other_name}/metrics",), None, "m", 1)
    with engine_lock(held, tmp_path / "elsewhere", "the-first"):
        ended = bench(engine, "random-prefill")
    assert ended.code == 4
    assert "run the-first (process" in errors(ended)[0]
    assert ended.out == ""
