"""Every workload of `hitlab bench engine` on a real vLLM: what the block model expects is what the engine does.

One engine with one rank (only there the way of a request is known in advance) and a pool of 400 blocks, so that a
workload can be made to overflow it.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import BENCH_POOL_BLOCKS, BLOCK_SIZE
from tests.real.engine import RunningEngine
from tests.real.job import HITLAB

# The engine tells 1 GiB whatever the pool (--num-gpu-blocks-override), so a GB holds the tokens of the pool.
POOL_TOKENS = BENCH_POOL_BLOCKS * BLOCK_SIZE
WORKLOADS: dict[str, list[str]] = {
    "long-doc-qa": [
        *("--kv-cache-volume", "0.3", "--ldqa-document-length", "700", "--ldqa-query-per-document", "3"),
        *("--ldqa-max-output-length", "8"),
    ],
    "multi-round-chat": [
        *(
            "--kv-cache-volume",
            "0.2",
            "--mrc-shared-prompt-length",
            "300",
            "--mrc-chat-history-length",
            "400",
        ),
        *("--mrc-output-length", "1", "--mrc-qps", "2", "--mrc-duration", "6"),
    ],
    "long-doc-permutator": [
        *("--ldp-num-contexts", "4", "--ldp-context-length", "250", "--ldp-system-prompt-length", "200"),
        *("--ldp-num-permutations", "12", "--ldp-max-output-length", "4"),
    ],
    "prefix-suffix-tuner": ["--psf-context-length", "1000", "--psf-thrash", "0.4"],
    "random-prefill": ["--rp-request-length", "500", "--rp-num-requests", "12"],
    "kv-tier-pressure": [
        *("--ktp-pool-size", "20", "--ktp-docs-per-request", "2", "--ktp-context-length", "200"),
        *("--ktp-num-requests", "30", "--ktp-access-skew", "1", "--ktp-system-prompt-length", "100"),
    ],
}
Summary = dict[str, Any]


def bench(engine: RunningEngine, folder: Path, workload: str, *more: str) -> Summary:
    command = [
        HITLAB,
        "bench",
        "engine",
        "--engine-url",
        engine.url,
        "--workload",
        workload,
        "--no-interactive",
    ]
    ended = subprocess.run(
        [*command, *WORKLOADS.get(workload, []), "--ignore-eos", "--reset-cache", "--json", *more],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    summary: Summary = json.loads((folder / "bench_summary.json").read_text())
    for entry in summary["cache"]:
        print(
            f"[bench] {workload}, {entry['stage']}: {entry['hit_tokens']} of {entry['query_tokens']} tokens hit, "
            f"expected {entry['predicted_least']} to {entry['predicted_most']}, "
            f"{entry['as_predicted']} of {entry['compared']} requests as expected"
        )
    return summary


def assert_as_expected(summary: Summary, *, exact: bool = True, overflows: bool = True) -> None:
    """Three accounts of the same tokens: the engine's counters, its answers, and the model; and lengths as planned.

    overflows: whether the workload fills the tier that it is about; where it does not, that is said.
    """
    for entry in summary["cache"]:
        assert entry["query_tokens"] == entry["prompt_tokens"]
        assert entry["hit_tokens"] == entry["cached_tokens"]
        assert entry["compared"] > 0
        assert entry["as_predicted"] == entry["compared"], entry["differing"]
        assert entry["predicted_least"] <= entry["hit_tokens"] <= entry["predicted_most"]
        if exact:
            assert entry["predicted_least"] == entry["predicted_most"]
    assert all(
        request["prompt_tokens"] == request["planned_prompt_tokens"] for request in summary["requests"]
    )
    said = {w["code"] for w in summary["warnings"]} - {"RATE_NOT_REACHED"}
    assert said == (set() if overflows else {"BENCH_NOTE"}), summary["warnings"]
    assert overflows or any(" of the tier: " in w["message"] for w in summary["warnings"])


def measured(summary: Summary) -> Summary:
    found: Summary = summary["cache"][-1]
    return found


@pytest.mark.parametrize("workload", WORKLOADS)
def test_workload(bench_engine: RunningEngine, tmp_path: Path, workload: str) -> None:
    summary = bench(bench_engine, tmp_path, workload)
    assert_as_expected(summary, overflows=workload not in ("prefix-suffix-tuner", "kv-tier-pressure"))
    share = measured(summary)["hit_tokens"] / measured(summary)["query_tokens"]
    least, most = {
        "long-doc-qa": (0.9, 1),
        "multi-round-chat": (0.85, 1),
        "long-doc-permutator": (0.2, 0.9),
        "prefix-suffix-tuner": (0.75, 0.8),
        "random-prefill": (0, 0),
        "kv-tier-pressure": (0.2, 0.9),
    }[workload]
    assert least <= share <= most
    if workload in ("long-doc-qa", "prefix-suffix-tuner"):
        assert summary["size_source"].startswith("vllm:cache_config_info")
        assert summary["config"]["tokens_per_gb_kvcache"] == POOL_TOKENS


def test_long_answers_that_are_quoted(bench_engine: RunningEngine, tmp_path: Path) -> None:
    """The tiny model answers with line ends, which make other tokens when they are quoted: nothing of them is found."""
    summary = bench(
        bench_engine, tmp_path, "multi-round-chat", "--mrc-output-length", "40", "--mrc-duration", "4"
    )
    assert_as_expected(summary, exact=False)
    assert measured(summary)["hit_tokens"] == measured(summary)["predicted_least"]


def test_a_pool_that_overflows_finds_nothing_in_the_second_pass(
    bench_engine: RunningEngine, tmp_path: Path
) -> None:
    summary = bench(bench_engine, tmp_path, "prefix-suffix-tuner", "--psf-thrash", "1.0")
    found = measured(summary)
    assert summary["facts"]["Overflow by whole requests (x)"] > 1.05
    assert (found["hit_tokens"], found["predicted_least"], found["predicted_most"]) == (0, 0, 0)
    assert found["as_predicted"] == found["compared"] == summary["facts"]["Prefixes"]
    note, missing = summary["warnings"]
    assert (note["code"], missing["code"]) == ("BENCH_NOTE", "REUSE_MISSING")
    assert "only with breakers and suffixes" in note["message"]
    assert "as the block model expects" in missing["message"]


def test_eviction_is_predicted_request_by_request(bench_engine: RunningEngine, tmp_path: Path) -> None:
    """One in flight: the order of admission is then the order of the requests."""
    more = ["--ktp-pool-size", "100", "--ktp-access-skew", "1.1", "--ktp-num-requests", "60"]
    summary = bench(bench_engine, tmp_path, "kv-tier-pressure", *more, "--ktp-num-inflight-requests", "1")
    assert_as_expected(summary)
    with_room = sum(request["cached_tokens"] > 100 for request in summary["requests"])
    assert 0 < with_room < 60, "some documents survive, some do not"


def test_answer_quality(bench_engine: RunningEngine, tmp_path: Path) -> None:
    samples = [
        {
            "id": f"q{i}",
            "question": f"Which train of story {i} was late?",
            "answer": "the second one",
            "ctxs": [
                {
                    "title": f"Story {i}",
                    "text": f"Two trains left the station at {i}. The second one was late.",
                },
                {"title": "Trains", "text": "Every train has a driver."},
            ],
        }
        for i in range(4)
    ]
    (tmp_path / "qa.json").write_text(json.dumps([*samples, {"question": "no answer"}]))
    more = ["--rag-dataset", "qa.json", "--rag-num-samples", "4", "--rag-max-output-length", "6"]
    more += ["--rag-doc-align-tokens", "32"]
    summary = bench(bench_engine, tmp_path, "rag-qa-quality", *more)
    assert_as_expected(summary)
    document = json.loads((tmp_path / "rag_qa_quality.json").read_text())
    assert document["summary"] == {"num_samples": 4, "num_parsed": 0, "parse_rate": 0.0, "f1_mean": None}
    assert summary["facts"]["Passages"] == 5
    for request in summary["requests"]:
        assert request["cached_tokens"] % 32 == 0
        assert request["cached_tokens"] > 32, "the first passage is found where it was prefilled"
