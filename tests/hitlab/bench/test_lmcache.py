"""Benches with an LMCache server beside the engine: its size, its counters, and the wrong kind of lookups."""

import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hitlab.bench.conftest import summary_of
from tests.hitlab.conftest import Ended, Hitlab, errors

STATUS = {
    "cache_context_meta": {
        "1": {"model_name": "demo", "kv_cache_layout": {"cache_size_per_token": 2**30 // 6000}}
    },
    "storage_manager": {"l1_manager": {"memory_total_bytes": 2**28}},
}


@dataclass
class FakeLmCache:
    """Answers /status, and counts lookups up at every scrape."""

    family: str = "blend"
    url: str = ""
    scrapes: int = 0

    def metrics(self) -> str:
        self.scrapes += 1
        return "".join(
            f"lmcache_{name}_lookup_requested_tokens_total {1000 * self.scrapes * moves}\n"
            f"lmcache_{name}_lookup_hit_tokens_total {250 * self.scrapes * moves}\n"
            for name, moves in (("mp", self.family == "mp"), ("blend", self.family == "blend"))
        )


@pytest.fixture
def lmcache() -> Iterator[FakeLmCache]:
    fake = FakeLmCache()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_metrics = self.path == "/metrics"
            body = (fake.metrics() if is_metrics else json.dumps(STATUS)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain" if is_metrics else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield fake
    server.shutdown()
    server.server_close()


TIERS = [
    "--ktp-context-length",
    "150",
    "--ktp-num-requests",
    "4",
    "--ktp-docs-per-request",
    "2",
    "--reset-cache",
]


@pytest.fixture
def pressure(
    hitlab: Hitlab, engine: str, lmcache: FakeLmCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Hitlab:
    monkeypatch.chdir(tmp_path)

    def run(*more: str | Path) -> Ended:
        return hitlab(
            *("bench", "engine", "--engine-url", engine, "--workload", "kv-tier-pressure", "--json"),
            *("--lmcache-url", lmcache.url, *TIERS, *more),
        )

    return run


def test_size_pool_and_lookups(pressure: Hitlab, tmp_path: Path) -> None:
    ended = pressure()
    assert ended.code == 0, ended.err
    summary = summary_of(tmp_path)
    per_gb = 2**30 // (2**30 // 6000)
    assert summary["config"]["tokens_per_gb_kvcache"] == per_gb
    assert summary["size_source"] == "LMCache's /status"
    tier = per_gb // 4
    assert summary["facts"]["Tier to overflow (tokens)"] == tier
    assert summary["facts"]["Documents in the pool"] == -(-2 * tier // 150)
    assert [entry["lmcache"]["blend"] for entry in summary["cache"]] == [
        {"requested_tokens": 1000, "hit_tokens": 250},
        {"requested_tokens": 1000, "hit_tokens": 250},
    ]
    assert "LMCache hits (blend):                       250 (25.00%)" in ended.out


def test_prefix_lookups_end_a_bench_that_needs_blending(
    pressure: Hitlab, lmcache: FakeLmCache, tmp_path: Path
) -> None:
    lmcache.family = "mp"
    ended = pressure()
    assert ended.code == 4
    assert "CacheBlend is not on" in errors(ended)[0]
    events = next(tmp_path.glob("bench-*/result/runs/*/events.jsonl")).read_text()
    assert '"status":"failed"' in events
    assert pressure("--ktp-docs-per-request", "1").code == 0, "one document is a prefix"
