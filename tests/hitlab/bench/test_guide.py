"""The command lines and files of LMCache's guide for `bench engine`, from start to result, on the simulator.

Flags and values are the guide's; addresses and the model are replaced, and what it leaves to defaults that no test can
wait for (volume, duration, lengths) is made small behind its own flags. Exit codes and lines are those that the guide
promises, or the page of intentional differences names.
"""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from contract.errors import ServiceError
from tests.hitlab.bench.conftest import Bench
from tests.hitlab.conftest import Hitlab

TOKENS_PER_GB = 6553
GUIDE_CONFIG = {
    "model": "demo", "workload": "long-doc-qa", "tokens_per_gb_kvcache": TOKENS_PER_GB, "kv_cache_volume": 100.0,
    "ldqa_document_length": 10000, "ldqa_query_per_document": 2, "ldqa_shuffle_policy": "random",
    "ldqa_num_inflight_requests": 3,
}  # fmt: skip
SECTIONS = ("Configuration", "Results", "Time to First Token", "Decoding Speed")
LINES = (
    "Engine URL", "Model", "Workload", "Successful requests", "Failed requests", "Benchmark duration (s)",
    "Total input tokens", "Total output tokens", "Input throughput (tok/s)", "Output throughput (tok/s)",
    "Mean TTFT (ms)", "P50 TTFT (ms)", "P90 TTFT (ms)", "P99 TTFT (ms)", "Mean decode (tok/s)", "P99 decode (tok/s)",
)  # fmt: skip
SMALL = {
    "long-doc-qa": ["--kv-cache-volume", "0.3", "--ldqa-document-length", "400", "--ldqa-max-output-length", "2"],
    "multi-round-chat": [
        *("--kv-cache-volume", "0.1", "--mrc-shared-prompt-length", "64", "--mrc-chat-history-length", "128"),
        *("--mrc-output-length", "2", "--mrc-duration", "1"),
    ],
    "long-doc-permutator": [
        *("--ldp-context-length", "64", "--ldp-system-prompt-length", "32", "--ldp-max-output-length", "2"),
    ],
    "prefix-suffix-tuner": ["--psf-context-length", "800", "--psf-thrash", "0.3"],
    "random-prefill": ["--rp-request-length", "150", "--rp-num-requests", "10"],
}  # fmt: skip
EXAMPLES = {
    "long-doc-qa": [
        *("--kv-cache-volume", "50", "--ldqa-document-length", "8000", "--ldqa-query-per-document", "4"),
        *("--ldqa-shuffle-policy", "tile"),
    ],
    "multi-round-chat": ["--mrc-qps", "2.0", "--mrc-duration", "120"],
    "long-doc-permutator": [
        *("--ldp-num-contexts", "4", "--ldp-context-length", "8000", "--ldp-num-permutations", "24"),
        *("--ldp-num-inflight-requests", "2"),
    ],
    "prefix-suffix-tuner": ["--psf-context-length", "8000", "--psf-prefix-ratio", "0.8", "--psf-thrash", "100"],
    "random-prefill": ["--rp-request-length", "15000", "--rp-num-requests", "100"],
}  # fmt: skip
REQUESTS = {
    "long-doc-qa": int(0.3 * TOKENS_PER_GB / 400) * 4,
    "multi-round-chat": 2,
    "long-doc-permutator": 24,
    "prefix-suffix-tuner": int(0.3 * TOKENS_PER_GB * 1.05 / 640),
    "random-prefill": 10,
}


@pytest.fixture
def lmcache(monkeypatch: pytest.MonkeyPatch) -> str:
    """An LMCache server that knows the model: what the guide's --lmcache-url is for."""

    class Server:
        def __init__(self, url: str, *_: Any) -> None:
            self.url = url

        def tokens_per_gb(self, _model: str) -> int:
            return TOKENS_PER_GB

        def memory_bytes(self) -> int:
            return 1 << 30

        def lookups(self) -> Any:
            raise ServiceError("no counters here")

    for place in ("runner.bench.sizing.LmCache", "runner.bench.prepare.LmCache"):
        monkeypatch.setattr(place, Server)
    return "http://localhost:8080"


@pytest.mark.parametrize("workload", EXAMPLES)
def test_the_example_of_every_workload(
    bench: Bench, hitlab: Hitlab, engine: str, lmcache: str, tmp_path: Path, workload: str
) -> None:
    """The guide's flags, then the same made small: the last one given counts."""
    arguments = [*EXAMPLES[workload], *SMALL[workload]]
    ended = hitlab(
        "bench",
        "engine",
        "--engine-url",
        engine,
        "--workload",
        workload,
        "--lmcache-url",
        lmcache,
        *arguments,
    )
    assert ended.code == 0, ended.err
    assert f" Engine Benchmark Result ({workload}) " in ended.out
    for section in SECTIONS:
        assert re.search(rf"^-+ {re.escape(section)} -+$", ended.out, re.MULTILINE)
    names = [line.partition(":")[0] for line in ended.out.splitlines()]
    places = [names.index(line) for line in LINES]
    assert places == sorted(places), "in the guide's order"
    values = dict(line.split(":", 1) for line in ended.out.splitlines() if ":" in line)
    assert int(values["Successful requests"]) == REQUESTS[workload]
    assert int(values["Failed requests"]) == 0
    rows = list(csv.DictReader((tmp_path / "bench_results.csv").open()))
    assert len(rows) == REQUESTS[workload]
    assert not (tmp_path / "bench_summary.json").exists(), "only with --json"


def test_export_then_replay_on_another_engine_with_an_override(
    bench: Bench, hitlab: Hitlab, engine: str, lmcache: str, tmp_path: Path
) -> None:
    """--export-config resolves model and size, and needs no LMCache server afterwards; flags win over the file."""
    base = ["bench", "engine", "--engine-url", engine]
    exported = hitlab(
        *base, "--workload", "long-doc-qa", "--lmcache-url", lmcache, "--export-config", "my_bench.json"
    )
    assert (exported.code, exported.out) == (0, "my_bench.json\n")
    stored = json.loads((tmp_path / "my_bench.json").read_text())
    assert {key: stored[key] for key in GUIDE_CONFIG} == GUIDE_CONFIG
    assert not {"engine_url", "lmcache_url"} & stored.keys()
    assert not list(tmp_path.glob("bench-*")), "nothing was sent"
    replayed = hitlab(*base, "--config", "my_bench.json", *SMALL["long-doc-qa"], "--json")
    assert replayed.code == 0, replayed.err
    summary = json.loads((tmp_path / "bench_summary.json").read_text())
    assert summary["config"]["kv_cache_volume_gb"] == 0.3, "the command line wins"
    assert summary["config"]["tokens_per_gb_kvcache"] == TOKENS_PER_GB


def test_the_guides_own_file(bench: Bench, hitlab: Hitlab, engine: str, tmp_path: Path) -> None:
    (tmp_path / "my_bench.json").write_text(json.dumps(GUIDE_CONFIG))
    ended = hitlab(
        "bench", "engine", "--engine-url", engine, "--config", "my_bench.json", *SMALL["long-doc-qa"]
    )
    assert ended.code == 0, ended.err
    assert "Workload:                                    long-doc-qa" in ended.out


def test_no_interactive_fails_at_once(hitlab: Hitlab) -> None:
    ended = hitlab("bench", "engine", "--workload", "long-doc-qa", "--no-interactive")
    assert ended.code == 2
    assert "missing --engine-url" in ended.err


def test_no_warmup_measures_a_cold_start(bench: Bench, hitlab: Hitlab, engine: str, lmcache: str) -> None:
    ended = hitlab(
        *("bench", "engine", "--engine-url", engine, "--workload", "long-doc-qa", "--lmcache-url", lmcache),
        *("--no-warmup", "--reset-cache", *SMALL["long-doc-qa"]),
    )
    assert ended.code == 0
    assert "skipped (--no-warmup)" in ended.out


def test_tokens_per_gb_from_the_log_of_vllm() -> None:
    """The guide's arithmetic, in the line that asks for the number."""
    from runner.bench.sizing import HOW_TO_COMPUTE

    assert "567890 / 12.34 = 46020" in HOW_TO_COMPUTE
    assert round(567890 / 12.34) == 46020


def test_two_stacks_by_their_quality_files(bench: Bench, hitlab: Hitlab, engine: str, tmp_path: Path) -> None:
    """The guide's two runs of rag-qa-quality and what it calls comparable; here a command compares them."""
    sample = {
        "question": "Who?",
        "answers": ["Ann"],
        "ctxs": [{"title": "A", "text": "Ann did it."}],
        "id": "q1",
    }
    (tmp_path / "qa.jsonl").write_text(json.dumps(sample) + "\n")
    arguments = [
        *("--workload", "rag-qa-quality", "--tokens-per-gb-kvcache", "6000", "--rag-dataset", "qa.jsonl"),
        *("--rag-num-samples", "20", "--rag-max-output-length", "4", "--rag-doc-align-tokens", "16"),
    ]  # fmt: skip
    for name in ("a.json", "b.json"):
        ended = hitlab("bench", "engine", "--engine-url", engine, *arguments, "--rag-output", name)
        assert ended.code == 0, ended.err
        for line in (
            "Samples measured:",
            "Samples scored:",
            "Parse rate:",
            "Mean F1 (scored only):",
            "Run fingerprint:",
        ):
            assert line in ended.out
    one, other = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert one["run_fingerprint"] == other["run_fingerprint"]
    assert {"run_fingerprint", "model", "config", "summary", "per_sample"} <= one.keys()
    assert set(one["summary"]) == {"num_samples", "num_parsed", "parse_rate", "f1_mean"}
    (entry,) = one["per_sample"]
    assert {"sample_id", "f1", "parsed", "answer", "ttft", "num_output_tokens"} <= entry.keys()
    assert (entry["f1"], entry["parsed"], entry["answer"]) == (None, False, ""), "unparsed is null, not 0"
    compared = hitlab("bench", "compare", "a.json", "b.json")
    assert compared.code == 0
    assert "1 paired" in compared.out
