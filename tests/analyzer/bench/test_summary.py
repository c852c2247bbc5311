"""Numbers, keys and text of a summary. Numbers are worked out by hand."""

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.analyze import analyze_measurement
from analyzer.bench.summary import distribution, distributions, exit_code, quality_document, summarize_bench
from analyzer.bench.table import WIDTH, summary_text
from contract.documents import read_document
from contract.errors import ArtifactError, ExitCode
from contract.manifest import read_measured_manifest
from contract.records import RequestRecord
from tests.analyzer.bench.conftest import RAG, STAMP, Make
from tests.runner.bench.records import failed, record

GUIDE_CONFIG = [
    "engine_url", "model", "workload", "kv_cache_volume_gb", "tokens_per_gb_kvcache", "seed", "output_dir",
    "export_csv", "export_json", "quiet", "ignore_eos", "warmup_policy",
]  # fmt: skip
GUIDE_RESULTS = [
    "total_requests", "successful_requests", "failed_requests", "elapsed_time", "mean_ttft_ms", "mean_decode_speed",
    "mean_request_latency_ms", "input_throughput", "output_throughput", "total_input_tokens", "total_output_tokens",
    "p50_ttft_ms", "p90_ttft_ms", "p99_ttft_ms", "p50_decode_speed", "p90_decode_speed", "p99_decode_speed",
    "p50_request_latency_ms", "p90_request_latency_ms", "p99_request_latency_ms",
]  # fmt: skip
OURS = [
    "cache", "config", "distributions", "engine", "error", "errors", "facts", "fingerprint", "fingerprint_parts",
    "finished_at", "host", "kind", "load", "parameters", "phases", "requests", "results", "run_directory", "run_id",
    "schema_version", "size_source", "skipped_phases", "stamp", "started_at", "status", "tokenizer", "validation",
    "versions", "warnings", "without_decode",
]  # fmt: skip


def test_the_guides_keys_and_ours(make: Make) -> None:
    made = make()
    summary = summarize_bench(made.manifest, made.directory)
    assert list(summary["config"]) == GUIDE_CONFIG
    assert list(summary["results"])[:12] == [*GUIDE_RESULTS[:9], "request_throughput", *GUIDE_RESULTS[9:11]]
    assert set(GUIDE_RESULTS) <= summary["results"].keys()
    assert sorted(summary) == OURS
    assert summary["parameters"]["ldqa_document_length"] == 1500


def test_numbers(make: Make) -> None:
    slow = record(1, ttft_s=0.5, e2el_s=2.5, itl_s=(0.5, 1.5), completion_tokens=3, cached_tokens=0)
    single = record(2, ttft_s=0.1, e2el_s=0.1, itl_s=(), completion_tokens=1)
    made = make([record(0), slow, single, failed(3), failed(4, "timeout")], status="partial")
    summary = summarize_bench(made.manifest, made.directory)
    results = summary["results"]
    assert (results["total_requests"], results["successful_requests"], results["failed_requests"]) == (
        5,
        3,
        2,
    )
    assert summary["errors"] == {"http": 1, "timeout": 1}
    assert results["mean_ttft_ms"] == pytest.approx((250 + 500 + 100) / 3)
    assert results["p50_ttft_ms"] == pytest.approx(250)
    assert results["p90_ttft_ms"] == pytest.approx(450), "between 250 and 500 at 0.8"
    # Decode speed: 3 tokens in 0.75 s, 2 in 2 s, and none of an answer of one token. Tokens over time, not (4 + 1) / 2.
    assert results["mean_decode_speed"] == pytest.approx((3 + 2) / (0.75 + 2))
    assert summary["without_decode"] == {"one token": 1}
    assert summary["distributions"]["decode_speed"]["n"] == 2
    assert results["p99_decode_speed"] == pytest.approx(1.03), "the slow tail: what 99 % reach"
    assert results["p50_decode_speed"] == pytest.approx(2.5)
    assert results["p99_tpot_ms"] == pytest.approx(250 + 0.99 * 750)
    assert summary["distributions"]["itl_ms"]["n"] == 5
    assert results["mean_itl_ms"] == pytest.approx((3 * 250 + 500 + 1500) / 5)
    assert results["elapsed_time"] == 4.0
    assert results["input_throughput"] == 300 / 4
    assert results["output_throughput"] == (4 + 3 + 1) / 4
    assert exit_code(summary) == ExitCode.REQUESTS_FAILED
    assert summary["warnings"][-1] == {"code": "REQUESTS_FAILED", "message": "2 of 5 requests failed"}


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=60))
def test_percentiles_have_one_definition(values: list[float]) -> None:
    found = distribution(values)
    assert found is not None

    def percentile(p: float) -> float:
        ordered = sorted(values)
        place = (len(ordered) - 1) * p / 100
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    for p in (50, 90, 99):
        assert found[f"p{p}"] == pytest.approx(percentile(p), rel=1e-9)
    assert found["mean"] == pytest.approx(statistics.fmean(values))
    assert found["n"] == len(values)
    slow = distribution(values, slow_is_low=True)
    assert slow is not None
    assert slow["p99"] == pytest.approx(percentile(1), rel=1e-9)
    assert slow["p99"] <= slow["p90"] <= slow["p50"]


def at_once(number: int, **changes: Any) -> RequestRecord:
    """As a proxy hands an answer over that it has collected; the end mark comes a moment later."""
    values = {"ttft_s": 0.5, "e2el_s": 0.50002, "itl_s": (0.0, 0.0, 0.0)}
    return record(number, **(values | changes))


@given(
    st.lists(
        st.tuples(st.integers(2, 40), st.floats(0.001, 0.2), st.booleans()), min_size=1, max_size=30
    ).filter(lambda answers: any(not collected for _, _, collected in answers))
)
def test_the_mean_decode_speed_is_tokens_over_time(answers: list[tuple[int, float, bool]]) -> None:
    """Some answers arrive token by token, others at once: these have no time, and are left out and counted."""
    rows = [
        at_once(n, completion_tokens=tokens)._asdict()
        if collected
        else record(
            n, completion_tokens=tokens, itl_s=(gap,) * (tokens - 1), e2el_s=0.25 + gap * (tokens - 1)
        )._asdict()
        for n, (tokens, gap, collected) in enumerate(answers)
    ]
    found = distributions(rows)
    timed = [(tokens - 1, gap) for tokens, gap, collected in answers if not collected]
    assert found["decode_speed"]["n"] == found["tpot_ms"]["n"] == len(timed)
    assert found["itl_ms"]["n"] == sum(count for count, _ in timed)
    truth = sum(count for count, _ in timed) / sum(count * gap for count, gap in timed)
    assert found["decode_speed"]["mean"] == pytest.approx(truth)
    assert found["decode_speed"]["mean"] == pytest.approx(1000 / found["itl_ms"]["mean"]), "the same twice"


@pytest.mark.parametrize(
    ("changes", "reason", "line", "said"),
    [
        ({}, "one read", "Arrived in one read (no speed):", "2 of 2 answers arrived in one read"),
        ({"itl_s": (), "chunks": 1}, "one read", "Arrived in one read (no speed):", "2 of 2 answers arrived in one read"),
        ({"ttft_s": None, "itl_s": (), "chunks": 0}, "no chunk", "Counts without text (no speed):",
         "2 of 2 answers carry token counts and no text"),
        ({"completion_tokens": 1, "itl_s": (), "chunks": 1}, "one token", "One token alone (no speed):", None),
    ],
)  # fmt: skip
def test_why_there_is_no_decode_speed_is_said(
    make: Make, changes: dict[str, Any], reason: str, line: str, said: str | None
) -> None:
    made = make([at_once(0, **changes), at_once(1, **changes)])
    summary = summarize_bench(made.manifest, made.directory)
    assert summary["without_decode"] == {reason: 2}
    assert summary["results"]["mean_decode_speed"] is None
    assert summary["results"]["mean_itl_ms"] is None, "an ITL of 0.00 would be a lie"
    text = summary_text(summary)
    assert [shown.split()[-1] for shown in text.splitlines() if shown.startswith(line)] == ["2"]
    assert [shown.split(":")[1].strip() for shown in text.splitlines() if shown.startswith("Mean ITL")] == [
        "not measured"
    ]
    messages = [warning["message"] for warning in summary["warnings"] if warning["code"] == "TOKENS_UNTIMED"]
    assert messages == ([] if said is None else [f"{said}, so ITL and decode speed cannot be measured"])


def test_single_answers_in_one_read_are_counted_and_not_warned_of(make: Make) -> None:
    made = make([record(0), at_once(1), record(2, completion_tokens=1, itl_s=())])
    summary = summarize_bench(made.manifest, made.directory)
    assert summary["without_decode"] == {"one read": 1, "one token": 1}
    assert summary["warnings"] == []
    assert summary["distributions"]["decode_speed"]["n"] == 1
    analyze_measurement(made.manifest, STAMP)
    page = made.directory.report.read_text()
    assert "Answers without TPOT, ITL and decode speed: one read: 1, one token: 1." in page


def test_nothing_measured_is_null_and_said(make: Make) -> None:
    made = make([failed(0)], status="partial")
    summary = summarize_bench(made.manifest, made.directory)
    assert summary["results"]["mean_ttft_ms"] is None
    assert summary["results"]["p99_decode_speed"] is None
    text = summary_text(summary)
    shown = [line.split(":") for line in text.splitlines() if line.startswith("Mean")]
    assert [(name, value.strip()) for name, value in shown] == [
        ("Mean TTFT (ms)", "not measured"),
        ("Mean decode (tok/s)", "not measured"),
    ]


def test_interrupted_and_killed_runs_say_so(make: Make) -> None:
    made = make([record(0), failed(1, "aborted")], status="interrupted", load=None)
    summary = summarize_bench(made.manifest, made.directory)
    assert summary["status"] == "interrupted"
    assert exit_code(summary) == ExitCode.INTERRUPTED
    assert summary["warnings"] == [], "an aborted request is no failure of the engine"
    assert "(long-doc-qa, interrupted)" in summary_text(summary)


EVIDENCE = {
    "stage": "formal", "query_tokens": 200, "hit_tokens": 128, "external_query_tokens": 72, "external_hit_tokens": 36,
    "prompt_tokens": 200, "cached_tokens": 164, "predicted_least": 96, "predicted_most": 128, "compared": 2,
    "as_predicted": 1, "lmcache": {"lookup": {"requested_tokens": 72, "hit_tokens": 36}},
}  # fmt: skip
TEXT = """\
======== Engine Benchmark Result (long-doc-qa) =========
-------------------- Configuration ---------------------
Engine URL:                                     http://e
Model:                                                 m
Workload:                                    long-doc-qa
Seed:                                                 42
Working set (tokens):                               6000
Documents:                                             4
----------------------- Results ------------------------
Successful requests:                                   2
Failed requests:                                       0
Benchmark duration (s):                             4.00
Total input tokens:                                  200
Total output tokens:                                   8
Input throughput (tok/s):                          50.00
Output throughput (tok/s):                          2.00
----------------- Time to First Token ------------------
Mean TTFT (ms):                                   250.00
P50 TTFT (ms):                                    250.00
P90 TTFT (ms):                                    250.00
P99 TTFT (ms):                                    250.00
-------------------- Decoding Speed --------------------
Mean decode (tok/s):                                4.00
P99 decode (tok/s):                                 4.00
Answers with speed and ITL:                            2
----------------- Inter-token Latency ------------------
Mean ITL (ms):                                    250.00
P50 ITL (ms):                                     250.00
P90 ITL (ms):                                     250.00
P99 ITL (ms):                                     250.00
------------------- Request Latency --------------------
Mean latency (ms):                               1000.00
P50 latency (ms):                                1000.00
P90 latency (ms):                                1000.00
P99 latency (ms):                                1000.00
------------------- Cache, measured --------------------
Prompt tokens:                                       200
Cached tokens (answers):                    164 (82.00%)
Hit tokens (engine's counters):             128 (64.00%)
Hit tokens (external cache):                 36 (50.00%)
LMCache hits (lookup):                       36 (50.00%)
Expected (block model):                        96 to 128
Requests as expected:                             1 of 2
========================================================"""


def test_the_text_is_as_the_guide_shows_it_and_goes_on_from_there(make: Make) -> None:
    made = make(bench={"phases": [], "cache": [EVIDENCE]})
    text = summary_text(summarize_bench(made.manifest, made.directory))
    assert text == TEXT
    assert {len(line) for line in text.splitlines()} == {WIDTH}


# ---- answers

ANSWERS: list[dict[str, Any]] = [
    {"request_id": "r0", "sample_id": "a", "answers": ["Ann"], "answer": "<final_answer>ann</final_answer>"},
    {"request_id": "r1", "sample_id": "b", "answers": ["Bob"], "answer": "<final_answer>cut"},
    {"request_id": "r2", "sample_id": "c", "answers": ["Cid"], "answer": None},
    {"request_id": "r9", "sample_id": "d", "answers": ["Dan"], "answer": None},
]


def test_quality(make: Make) -> None:
    made = make([record(0), record(1), failed(2)], settings=RAG, answers=ANSWERS)
    summary = summarize_bench(made.manifest, made.directory)
    document = quality_document(summary, "out.json")
    assert list(document["config"]) == [
        "dataset", "num_samples", "max_output_length", "doc_align_tokens", "template_kwargs", "output_path",
    ]  # fmt: skip
    assert document["summary"] == {
        "num_samples": 3,
        "num_parsed": 1,
        "parse_rate": pytest.approx(1 / 3),
        "f1_mean": 1.0,
    }, "a sample that was not sent is not measured"
    samples = {sample["sample_id"]: sample for sample in document["per_sample"]}
    assert samples["a"] == {
        "sample_id": "a", "f1": 1.0, "parsed": True, "answer": "ann", "ttft": 0.25, "num_output_tokens": 4,
        "error": None, "finish_reason": "length",
    }  # fmt: skip
    assert (samples["b"]["f1"], samples["b"]["parsed"]) == (None, False), "not parsed is not 0"
    assert samples["b"]["answer"] == samples["c"]["answer"] == "", "the guide's"
    assert samples["c"]["error"] == "http"
    assert document["run_fingerprint"] == "0123456789abcdef"
    text = summary_text(summary)
    assert "Samples scored:                                        1" in text
    assert "Parse rate:                                         0.33" in text
    assert "Mean F1 (scored only):                              1.00" in text


# ---- analysis


def test_analyze_gives_the_same_again_and_writes_a_page(make: Make) -> None:
    made = make(bench={"phases": [], "cache": [EVIDENCE]})
    manifest = read_measured_manifest(made.manifest.directory.manifest)
    first = analyze_measurement(manifest, STAMP)
    page = made.directory.report.read_text()
    second = analyze_measurement(manifest, STAMP)
    assert first.document == second.document == read_document(made.directory.analysis, "analysis")
    assert made.directory.report.read_text() == page
    assert first.exit_code == ExitCode.DONE
    for part in (
        "All 2 requests were answered; 82.00% of their 200 prompt tokens",
        "expected by the block model",
        "TTFT",
    ):
        assert part in page
    assert "<script" not in page
    assert "http-equiv" in page


def test_text_of_others_is_escaped_on_the_page(make: Make) -> None:
    evil = "<script>alert(1)</script>"
    made = make([record(0, group=evil)], settings={"model": evil}, error=evil, status="failed")
    analyze_measurement(made.manifest, STAMP)
    page = made.directory.report.read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_measurement_that_is_not_there(make: Make) -> None:
    made = make()
    with pytest.raises(ArtifactError, match="no measurement"):
        analyze_measurement(made.manifest, "20250101_000000")
