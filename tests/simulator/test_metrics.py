"""Names, types, labels and buckets of the exposition. The real engine's own list is compared in tests/real."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from simulator.config import SimulatorConfig
from simulator.metrics import EngineMetrics, token_buckets


@pytest.fixture(scope="module")
def metrics() -> EngineMetrics:
    config = SimulatorConfig(ranks=2, blocks_per_rank=300, max_model_len=4096)
    return EngineMetrics(config, [(lambda: 3, lambda: 2, lambda: 0.5), (lambda: 0, lambda: 0, lambda: 0.25)])


def values(metrics: EngineMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def one(metrics: EngineMetrics, name: str, **labels: str) -> float:
    return values(metrics)[name, frozenset({"model_name": "demo", **labels}.items())]


def test_token_buckets_are_those_of_the_real_engine() -> None:
    assert token_buckets(4096) == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
    assert token_buckets(5000)[-1] == 5000
    assert token_buckets(1) == [1]


def test_gauges_are_read_at_the_scrape(metrics: EngineMetrics) -> None:
    assert one(metrics, "vllm:num_requests_running", engine="0") == 3
    assert one(metrics, "vllm:num_requests_waiting", engine="0") == 2
    assert one(metrics, "vllm:num_requests_waiting_by_reason", engine="0", reason="capacity") == 2
    assert one(metrics, "vllm:kv_cache_usage_perc", engine="1") == 0.25


def test_every_rank_has_every_series_before_the_first_request(metrics: EngineMetrics) -> None:
    labels: dict[str, set[str]] = {}
    for name, pairs in values(metrics):
        if name.startswith("vllm:") and not name.startswith("vllm:admission_rejections"):
            labels.setdefault(name, set()).add(dict(pairs)["engine"])
    assert len(labels) > 80
    assert all(engines == {"0", "1"} for engines in labels.values())


def test_ranks_are_counted_apart(metrics: EngineMetrics) -> None:
    metrics.ranks[1].queries.inc(320)
    metrics.ranks[1].finished.inc()
    assert one(metrics, "vllm:prefix_cache_queries_total", engine="0") == 0
    assert one(metrics, "vllm:prefix_cache_queries_total", engine="1") == 320
    assert one(metrics, "vllm:request_success_total", engine="1", finished_reason="length") == 1


def test_cache_config_tells_one_ranks_tokens_and_all_ranks_blocks(metrics: EngineMetrics) -> None:
    found = [dict(pairs) for name, pairs in values(metrics) if name == "vllm:cache_config_info"]
    assert [labels["engine"] for labels in sorted(found, key=lambda labels: labels["engine"])] == ["0", "1"]
    assert {labels["num_gpu_blocks"] for labels in found} == {"600"}
    assert {labels["kv_cache_size_tokens"] for labels in found} == {"9600"}
    assert {labels["block_size"] for labels in found} == {"32"}
    assert {labels["enable_prefix_caching"] for labels in found} == {"True"}
    assert {labels["kv_cache_max_concurrency"] for labels in found} == {"2.34375"}


def test_restarts_can_be_told(metrics: EngineMetrics) -> None:
    names = {name for name, _ in values(metrics)}
    assert {"process_start_time_seconds", "vllm:prefix_cache_hits_created"} <= names
