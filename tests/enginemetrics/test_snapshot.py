import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import NotThisEngineError, ServiceError
from enginemetrics import is_idle, read_snapshot, subtract
from tests.shared_data import SHARED_DATA

Q, H = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"


def lines(*rows):
    return "\n".join(rows) + "\n"


def pair(queries, hits, labels='engine="0",model_name="m"', names=(Q, H)):
    return (f"{names[0]}{{{labels}}} {queries}", f"{names[1]}{{{labels}}} {hits}")


def read(*texts, model="m", dp_size=1, engine_label_map=None, **kw):
    return read_snapshot(texts, model=model, dp_size=dp_size, engine_label_map=engine_label_map or {}, **kw)


# Old and new texts


def test_tokens_win_over_the_deprecated_names_beside_them():
    text = lines(*pair(160, 32), *pair(999, 9, names=("vllm:gpu_prefix_cache_queries_total",
                                                     "vllm:gpu_prefix_cache_hits_total")))  # fmt: skip
    snapshot = read(text)
    assert (snapshot.queries, snapshot.hits, snapshot.unit) == (160, 32, "tokens")
    assert snapshot.metric_names.queries == Q


@pytest.mark.parametrize("suffix", ["", "_total"])
def test_only_gpu_names_count_blocks(suffix):
    names = (f"vllm:gpu_prefix_cache_queries{suffix}", f"vllm:gpu_prefix_cache_hits{suffix}")
    text = lines(*pair(10, 4, names=names), 'vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.25')
    snapshot = read(text)
    assert snapshot.unit == "blocks"
    assert snapshot.metric_names.queries == names[0]
    assert snapshot.metric_names.kv_cache_usage == "vllm:gpu_cache_usage_perc"
    assert snapshot.ranks[0].kv_cache_usage == 0.25
    assert any("blocks" in note for note in snapshot.notes)


def test_counter_without_total_and_with_a_type_line():
    names = ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits")
    text = lines(f"# TYPE {names[0]} counter", *pair(7, 3, names=names), 'vllm:prompt_tokens{engine="0"} 7')
    snapshot = read(text)
    assert snapshot.metric_names.queries == names[0]
    assert (snapshot.queries, snapshot.ranks[0].prompt_tokens) == (7, 7)
    assert snapshot.metric_names.ledgers["prompt_tokens"] == "vllm:prompt_tokens"
    assert snapshot.metric_names.ledgers["prompt_tokens_by_source"] is None


def test_zero_counters_are_zero():
    snapshot = read(lines(*pair("0.0", "0.0")))
    assert (snapshot.queries, snapshot.hits) == (0, 0)
    assert subtract(snapshot, snapshot).hit_rate is None


# Ranks


def test_processes_of_one_rank_are_summed():
    text = lines(
        *pair(100, 10, 'engine="0",model_name="m",pid="7"'),
        *pair(11, 1, 'engine="0",model_name="m",pid="8"'),
        *pair(5, 0, 'engine="1",model_name="m",pid="7"'),
    )
    assert [(r.rank, r.queries, r.hits) for r in read(text, dp_size=2).ranks] == [(0, 111, 11), (1, 5, 0)]


def test_gauges_of_several_processes_must_agree():
    def text(a, b):
        gauge = 'vllm:kv_cache_usage_perc{{engine="0",model_name="m",pid="{}"}} {}'
        return lines(*pair(1, 0), gauge.format(7, a), gauge.format(8, b))

    assert read(text(0.5, 0.5)).ranks[0].kv_cache_usage == 0.5
    rank = read(text(0.5, 0.25)).ranks[0]
    assert rank.kv_cache_usage is None
    assert "different" in rank.unavailable["kv_cache_usage"]


def test_rank_from_map_then_digits_then_the_only_one():
    text = lines(*pair(1, 0, 'engine="blue"'), *pair(2, 0, 'engine="pod-1"'))
    assert [r.queries for r in read(text, dp_size=2, engine_label_map={"blue": 0}).ranks] == [1, 2]
    # The map wins over the digits.
    text = lines(*pair(1, 0, 'engine="7"'), *pair(2, 0, 'engine="3"'))
    assert [r.queries for r in read(text, dp_size=2, engine_label_map={"7": 1, "3": 0}).ranks] == [2, 1]
    for label in ('model_name="m"', 'engine="core"'):
        assert read(lines(*pair(3, 1, label))).ranks[0].queries == 3


def test_several_metrics_urls_together():
    one, two = lines(*pair(1, 0)), lines(*pair(2, 1, 'engine="1",model_name="m"'))
    for texts in ((one, two), (two, one)):
        assert [r.queries for r in read(*texts, dp_size=2).ranks] == [1, 2]


@pytest.mark.parametrize(
    ("texts", "dp_size", "words"),
    [
        ([lines(*pair(1, 0))], 2, ["missing DP ranks: 1", "seen: 0", "all ranks in service.metrics_urls"]),
        ([lines(*pair(1, 0, 'model_name="m"'))], 2, ["no label engine", "dp_size"]),
        ([lines(*pair(1, 0, 'engine="core",model_name="m"'))], 2, ['"core"', "engine_label_map"]),
        ([lines(*pair(1, 0, 'engine="2",model_name="m"'))], 2, ["rank 2", "0..1"]),
        ([lines(*pair(1, 0)), lines(*pair(1, 0))], 1, ["both show rank 0", "one rank has one page"]),
        ([lines(*pair(1, 2))], 1, ["more hits (2) than queries (1)"]),
        ([lines(*pair("NaN", 0))], 1, ["nan", "no count"]),
        ([lines(*pair("+Inf", 0))], 1, ["inf"]),
        ([lines(*pair(1.5, 0))], 1, ["1.5"]),
        ([lines(*pair(-1, -2))], 1, ["-1"]),
        ([lines(pair(1, 0)[0])], 1, ["no prefix-cache hits"]),
        ([lines(pair(1, 0)[1])], 1, ["no prefix-cache queries"]),
        ([""], 1, ["queries and hits", "vLLM"]),
        ([lines(*pair(1, 0), pair(1, 0, 'engine="1",model_name="m"')[0])], 2, ["rank 1", "incomplete"]),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused_in_one_line(texts, dp_size, words):
    with pytest.raises(ServiceError) as caught:
        read(*texts, dp_size=dp_size)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_labels_are_mapped_where_that_helps_and_only_there():
    """The map goes by the label, so two pages with one label stay one rank whatever stands in it."""
    zero, other, far = (lines(*pair(1, 0, f'engine="{label}",model_name="m"')) for label in ("0", "b0", "b1"))
    with pytest.raises(ServiceError, match="nothing tells them apart") as caught:
        read(zero, zero, far, dp_size=2)
    assert "engine_label_map" not in str(caught.value)
    with pytest.raises(
        ServiceError, match=r"give '0' and 'b0' ranks of their own in service\.engine_label_map"
    ):
        read(zero, other, dp_size=2)
    assert [rank.queries for rank in read(zero, other, dp_size=2, engine_label_map={"b0": 1}).ranks] == [1, 1]


def test_queries_and_hits_of_different_kinds_are_not_mixed():
    with pytest.raises(ServiceError, match="queries and hits of one kind"):
        read(lines(pair(9, 0)[0], pair(9, 3, names=("x", "vllm:gpu_prefix_cache_hits_total"))[1]))


# Models


def test_other_models_are_left_out_and_noted():
    text = lines(*pair(10, 5), *pair(700, 70, 'engine="0",model_name="other"'))
    snapshot = read(text)
    assert (snapshot.queries, snapshot.hits) == (10, 5)
    assert any("other" in note for note in snapshot.notes)


def test_an_alias_of_the_served_model_is_read_and_noted():
    snapshot = read(lines(*pair(10, 5)), model="alias")
    assert snapshot.queries == 10
    assert any("alias" in note for note in snapshot.notes)


def test_none_of_several_models_is_ours():
    text = lines(*pair(1, 0, 'engine="0",model_name="a"'), *pair(1, 0, 'engine="0",model_name="b"'))
    with pytest.raises(ServiceError, match=r"a, b; set service\.model"):
        read(text)


# Optional quantities


def test_what_is_not_exposed_is_none_with_a_reason():
    rank = read(lines(*pair(1, 0))).ranks[0]
    for name in ("kv_cache_usage", "requests_running", "prompt_tokens", "prompt_tokens_by_source",
                 "external_hits", "prefill_kv_computed_tokens_sum", "cache_config"):  # fmt: skip
        assert getattr(rank, name) is None
        assert "expose" in rank.unavailable[name]


def test_a_gauge_of_one_rank_only():
    text = lines(*pair(1, 0), *pair(1, 0, 'engine="1",model_name="m"'),
                 'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5')  # fmt: skip
    first, second = read(text, dp_size=2).ranks
    assert first.kv_cache_usage is None
    assert "rank 0" in first.unavailable["kv_cache_usage"]
    assert second.kv_cache_usage == 0.5
    assert "kv_cache_usage" not in second.unavailable


def test_nan_in_an_optional_quantity_is_a_reason():
    rank = read(lines(*pair(1, 0), 'vllm:kv_cache_usage_perc{engine="0"} NaN', 'vllm:prompt_tokens_total{engine="0"} NaN',
                      'vllm:request_success_total{engine="0",finished_reason="stop"} NaN')).ranks[0]  # fmt: skip
    assert (rank.kv_cache_usage, rank.prompt_tokens, rank.request_success) == (None, None, None)
    assert "nan" in rank.unavailable["kv_cache_usage"]
    assert "nan" in rank.unavailable["prompt_tokens"]
    assert "nan" in rank.unavailable["request_success"]


def test_cache_config():
    def config(text, dp_size=1):
        return read(text, dp_size=dp_size).ranks[-1].cache_config

    labels = 'engine="0",block_size="None",num_gpu_blocks="65",enable_prefix_caching="False",prefix_match_unit="16",x="}"'
    got = config(lines(*pair(1, 0), f"vllm:cache_config_info{{{labels}}} 1.0"))
    assert (got.block_size, got.num_gpu_blocks, got.enable_prefix_caching) == (None, 65, False)
    assert (got.prefix_match_unit, got.prefix_caching_hash_algo, got.labels["x"]) == (16, None, "}")
    # Without the engine label it speaks for every rank.
    two = (*pair(1, 0), *pair(1, 0, 'engine="1",model_name="m"'))
    assert config(lines(*two, 'vllm:cache_config_info{block_size="16"} 1'), dp_size=2).block_size == 16
    clash = lines(
        *pair(1, 0), *(f'vllm:cache_config_info{{engine="0",block_size="{b}"}} 1' for b in (16, 32))
    )
    assert config(clash) is None
    assert "different" in read(clash).ranks[0].unavailable["cache_config"]


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2**50), st.integers(0, 2**50)), min_size=1, max_size=4),
        min_size=1,
        max_size=5,
    ),
    st.randoms(use_true_random=False),
)
def test_sums_do_not_depend_on_the_order_of_series(per_rank, random):
    rows = []
    for rank, processes in enumerate(per_rank):
        for pid, (misses, hits) in enumerate(processes):
            rows += pair(misses + hits, hits, f'engine="{rank}",model_name="m",pid="{pid}"')
    random.shuffle(rows)
    snapshot = read(lines(*rows), dp_size=len(per_rank))
    assert [r.queries for r in snapshot.ranks] == [sum(m + h for m, h in p) for p in per_rank]
    assert [r.hits for r in snapshot.ranks] == [sum(h for _, h in p) for p in per_rank]


# Real engines


@pytest.mark.skipif(not SHARED_DATA.exists(), reason="no recorded scrapes beside the checkout")
@pytest.mark.parametrize("folder", ["vllm-0.32.0-cpu-dp2", "vllm-0.32.0-cpu-dp2-serve"])
def test_real_scrapes_of_vllm_0_32_with_two_ranks(folder):
    before, after = (
        read((SHARED_DATA / folder / f"{name}.prom").read_text(), model="tiny", dp_size=2)
        for name in ("baseline", "after")
    )
    sent = json.loads((SHARED_DATA / folder / "requests.json").read_text())
    difference = subtract(before, after)
    assert difference.findings == ()
    assert difference.unit == "tokens"
    assert [(r.queries, r.hits) for r in difference.ranks] == [(992, 544), (816, 320)]
    for rank in difference.ranks:
        mine = [row["usage"] for row in sent if row["rank"] == rank.rank]
        prompt = sum(usage["prompt_tokens"] for usage in mine)
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in mine)
        assert (rank.queries, rank.prompt_tokens, rank.request_prompt_tokens_sum) == (prompt, prompt, prompt)
        assert (rank.hits, rank.prompt_tokens_cached) == (cached, cached)
        assert rank.prompt_tokens_by_source == {
            "local_cache_hit": cached,
            "local_compute": prompt - cached,
            "external_kv_transfer": 0,
        }
        assert rank.prefill_kv_computed_tokens_sum == prompt - cached
        assert rank.generation_tokens == sum(usage["completion_tokens"] for usage in mine)
        assert sum(rank.request_success.values()) == len(mine)
        assert (rank.preemptions, rank.external_queries, rank.external_hits) == (0, 0, 0)
        assert rank.unavailable == {}
    for rank in after.ranks:
        config = rank.cache_config
        assert (config.block_size, config.num_gpu_blocks, config.kv_cache_size_tokens) == (
            32,
            131072,
            2097152,
        )
        assert (config.blocks_per_rank, config.match_unit) == (65536, 32)
        assert config.capacity_tokens == 65535 * 32
        assert (config.enable_prefix_caching, config.prefix_caching_hash_algo) == (True, "sha256")
        assert config.prefix_match_unit is None
    # Several API servers have no process start time and no _created series.
    alone = not folder.endswith("-serve")
    assert (after.process_start_times[0] is not None) == alone
    assert (after.ranks[0].counters_created is not None) == alone
    assert is_idle(after) is True
    assert (after.speculative, after.external_tier) == (False, False)


@pytest.mark.parametrize(
    "family",
    ["vllm_router_worker_health", "smg_worker_health", "dynamo_frontend_requests_total", "llm_d_epp_ready"],
)
@pytest.mark.parametrize("beside", [(), pair(10, 4)])
def test_the_page_of_a_router_is_no_engines(family, beside):
    with pytest.raises(NotThisEngineError, match=f"shows {family}, so it is the page of"):
        read(lines(*beside, f"{family} 1"))
