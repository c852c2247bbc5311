"""Metric families as vLLM's versions expose them, written down by hand: names, labels and units from 0.8.5 to 0.33.

In every version the same happens between two scrapes: a prompt of 1,024 tokens is sent twice to each of two ranks,
block size 16. The second time 1,008 of them are found: the last block is computed again.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from contract.errors import ServiceError
from contract.scrapes import join_scrapes, split_scrapes
from enginemetrics import EngineDifference, is_idle, read_snapshot, settling, subtract
from enginemetrics.snapshot import EngineSnapshot

PROMPT, FOUND, BLOCK = 1024, 1008, 16
RANKS = 2

CONFIG = (
    '# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{block_size="16",cache_dtype="auto",'
    'enable_prefix_caching="True",num_gpu_blocks="{blocks}"{more},engine="{rank}"}} 1.0\n'
)


@dataclass(frozen=True)
class Version:
    """Text of one rank, with {rank}, and what two prompts of 1,024 tokens add: sent, found, in tokens and in blocks.

    `of_all_ranks`: what stands in the page once.
    """

    name: str
    text: str
    unit: str = "tokens"
    config: str = ""
    of_all_ranks: str = ""
    kv_usage: float | None = 0.25
    present: tuple[str, ...] = ()
    """Ledgers beside queries and hits that this version has."""


# Counters of 0.8.5 count blocks; a prompt whose last block is full is asked for one block less.
V0_8_5 = Version(
    "0.8.5",
    """\
# HELP vllm:gpu_prefix_cache_queries_total GPU prefix cache queries, in terms of number of queried blocks.
# TYPE vllm:gpu_prefix_cache_queries_total counter
vllm:gpu_prefix_cache_queries_total{{engine="{rank}",model_name="m"}} {asked_blocks}.0
# HELP vllm:gpu_prefix_cache_hits_total GPU prefix cache hits, in terms of number of cached blocks.
# TYPE vllm:gpu_prefix_cache_hits_total counter
vllm:gpu_prefix_cache_hits_total{{engine="{rank}",model_name="m"}} {found_blocks}.0
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{{engine="{rank}",model_name="m"}} 0.25
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="{rank}",model_name="m"}} {sent}.0
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_sum{{engine="{rank}",model_name="m"}} 77.0
""",
    unit="blocks",
    present=("prompt_tokens",),
)

# Both families, both in tokens; only the new one is to be read.
V0_9_2 = Version(
    "0.9.2",
    """\
# TYPE vllm:gpu_prefix_cache_queries_total counter
vllm:gpu_prefix_cache_queries_total{{engine="{rank}",model_name="m"}} {sent}.0
# TYPE vllm:gpu_prefix_cache_hits_total counter
vllm:gpu_prefix_cache_hits_total{{engine="{rank}",model_name="m"}} {found}.0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{engine="{rank}",model_name="m"}} {sent}.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{{engine="{rank}",model_name="m"}} {found}.0
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{{engine="{rank}",model_name="m"}} 0.5
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="{rank}",model_name="m"}} 0.25
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="{rank}",model_name="m"}} {sent}.0
""",
    present=("prompt_tokens",),
)

# Several API servers before 0.11.1: the gauge has a process id, and every process its own, stale value.
V0_11_0 = Version(
    "0.11.0, two API servers",
    V0_9_2.text.replace(
        'vllm:kv_cache_usage_perc{{engine="{rank}",model_name="m"}} 0.25\n',
        'vllm:kv_cache_usage_perc{{engine="{rank}",model_name="m",pid="301"}} 0.25\n'
        'vllm:kv_cache_usage_perc{{engine="{rank}",model_name="m",pid="302"}} 0.0\n',
    ),
    kv_usage=None,
    present=("prompt_tokens",),
)

# The old names are gone, the external tier is counted, two API servers show no created series and no start time.
V0_12 = Version(
    "0.12.0",
    """\
vllm:prefix_cache_queries_total{{engine="{rank}",model_name="m"}} {sent}.0
vllm:prefix_cache_hits_total{{engine="{rank}",model_name="m"}} {found}.0
vllm:external_prefix_cache_queries_total{{engine="{rank}",model_name="m"}} 0.0
vllm:external_prefix_cache_hits_total{{engine="{rank}",model_name="m"}} 0.0
vllm:kv_cache_usage_perc{{engine="{rank}",model_name="m"}} 0.25
vllm:prompt_tokens_total{{engine="{rank}",model_name="m"}} {sent}.0
vllm:num_preemptions_total{{engine="{rank}",model_name="m"}} 0.0
vllm:num_requests_running{{engine="{rank}",model_name="m"}} 0.0
vllm:num_requests_waiting{{engine="{rank}",model_name="m"}} 0.0
""",
    present=("prompt_tokens", "external_queries", "external_hits", "preemptions"),
)

# 0.13 brought the histogram of computed tokens, 0.16 the sources.
V0_16 = Version(
    "0.16.0",
    V0_12.text
    + """\
vllm:prompt_tokens_by_source_total{{engine="{rank}",model_name="m",source="local_compute"}} {computed}.0
vllm:prompt_tokens_by_source_total{{engine="{rank}",model_name="m",source="local_cache_hit"}} {found}.0
vllm:prompt_tokens_by_source_total{{engine="{rank}",model_name="m",source="external_kv_transfer"}} 0.0
vllm:prompt_tokens_cached_total{{engine="{rank}",model_name="m"}} {found}.0
vllm:prompt_tokens_recomputed_total{{engine="{rank}",model_name="m"}} 0.0
vllm:request_prefill_kv_computed_tokens_bucket{{engine="{rank}",le="+Inf",model_name="m"}} 9.0
vllm:request_prefill_kv_computed_tokens_sum{{engine="{rank}",model_name="m"}} {computed}.0
vllm:request_prefill_kv_computed_tokens_count{{engine="{rank}",model_name="m"}} 9.0
vllm:request_prompt_tokens_sum{{engine="{rank}",model_name="m"}} {sent}.0
vllm:request_success_total{{engine="{rank}",finished_reason="length",model_name="m"}} {requests}.0
vllm:request_success_total{{engine="{rank}",finished_reason="stop",model_name="m"}} 0.0
""",
    present=(
        *V0_12.present,
        *("prompt_tokens_by_source", "prompt_tokens_cached", "prefill_kv_computed_tokens_sum"),
        *("request_prompt_tokens_sum", "request_success"),
    ),
)

V0_26 = Version(
    "0.26.0",
    V0_16.text.replace('vllm:prompt_tokens_recomputed_total{{engine="{rank}",model_name="m"}} 0.0\n', ""),
    config=CONFIG.replace("{more}", ',prefix_match_unit="None",kv_cache_size_tokens="16000"'),
    present=V0_16.present,
)

V0_33 = Version(
    "0.33.0",
    V0_26.text
    + "".join(
        f'vllm:prompt_tokens_cached_by_source_total{{{{engine="{{rank}}",model_name="m",source="{tier}"}}}} {value}\n'
        for tier, value in (("device", "{found}.0"), ("host", "0.0"), ("p2p", "0.0"), ("disk", "0.0"))
    ),
    of_all_ranks='vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 0.0\n',
    config=V0_26.config,
    present=(*V0_26.present, "prompt_tokens_cached_by_source"),
)

VERSIONS = [V0_8_5, V0_9_2, V0_11_0, V0_12, V0_16, V0_26, V0_33]
every_version = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)

LEDGERS = (
    *("prompt_tokens", "prompt_tokens_cached", "prompt_tokens_by_source", "prompt_tokens_cached_by_source"),
    *("generation_tokens", "preemptions", "external_queries", "external_hits", "prefill_kv_computed_tokens_sum"),
    *("request_prompt_tokens_sum", "request_success"),
)  # fmt: skip


def page(version: Version, rank: int, prompts: int, *, before: int = 5000) -> str:
    """One rank's series after so many of the pairs of prompts; every counter had a past."""
    counted = {
        "sent": before + prompts * 2 * PROMPT,
        "found": before // 2 + prompts * FOUND,
        "computed": before // 2 + prompts * (2 * PROMPT - FOUND),
        "asked_blocks": before + prompts * 2 * (PROMPT // BLOCK - 1),
        "found_blocks": before // 2 + prompts * (FOUND // BLOCK),
        "requests": prompts * 2,
    }
    text = version.text.format(rank=rank, **counted) + version.config.format(rank=rank, blocks=2000)
    return text if rank else version.of_all_ranks + text


def read(*texts: str, **options: Any) -> EngineSnapshot:
    return read_snapshot(texts, **{"model": "m", "dp_size": RANKS, "engine_label_map": {}, **options})


def happened(version: Version) -> tuple[EngineSnapshot, EngineSnapshot, EngineDifference]:
    """Before, after and the difference, both ranks on one page."""
    before, after = (
        read("".join(page(version, rank, prompts) for rank in range(RANKS))) for prompts in (0, 1)
    )
    return before, after, subtract(before, after)


@every_version
def test_queries_and_hits_are_counted_in_the_unit_of_the_version(version: Version) -> None:
    before, after, difference = happened(version)
    assert difference.findings == ()
    assert (before.unit, difference.unit) == (version.unit, version.unit)
    expected = (2 * PROMPT, FOUND) if version.unit == "tokens" else (126, 63)
    assert [(rank.queries, rank.hits) for rank in difference.ranks] == [expected] * RANKS
    assert difference.hit_rate == expected[1] / expected[0]
    assert [rank.kv_cache_usage for rank in after.ranks] == [version.kv_usage] * RANKS
    if version.kv_usage is None:
        assert "2 processes report different values" in after.ranks[0].unavailable["kv_cache_usage"]


@every_version
def test_counters_without_the_suffix_read_the_same(version: Version) -> None:
    plain = [
        read("".join(page(version, rank, prompts) for rank in range(RANKS)).replace("_total{", "{"))
        for prompts in (0, 1)
    ]
    _, _, usual = happened(version)
    difference = subtract(*plain)
    assert not plain[0].metric_names.queries.endswith("_total")
    assert [(rank.queries, rank.hits) for rank in difference.ranks] == [
        (rank.queries, rank.hits) for rank in usual.ranks
    ]
    assert [rank.prompt_tokens for rank in difference.ranks] == [2 * PROMPT] * RANKS


@every_version
def test_each_ledger_is_there_or_says_why_not(version: Version) -> None:
    _, _, difference = happened(version)
    values = {
        "prompt_tokens": 2 * PROMPT,
        "prompt_tokens_cached": FOUND,
        "prompt_tokens_by_source": {"external_kv_transfer": 0, "local_cache_hit": FOUND, "local_compute": 1040},
        "prompt_tokens_cached_by_source": {"device": FOUND, "disk": 0, "host": 0, "p2p": 0},
        "preemptions": 0,
        "external_queries": 0,
        "external_hits": 0,
        "prefill_kv_computed_tokens_sum": 1040,
        "request_prompt_tokens_sum": 2 * PROMPT,
        "request_success": {"length": 2, "stop": 0},
    }  # fmt: skip
    for rank in difference.ranks:
        for name in LEDGERS:
            expected = values[name] if name in version.present else None
            assert getattr(rank, name) == expected, name
            assert (name in rank.unavailable) == (expected is None), name


@every_version
def test_a_port_for_every_rank_reads_like_one_page(version: Version) -> None:
    """Hybrid or external load balancing; the text kept on disk holds both pages."""

    def taken(prompts: int, order: list[int]) -> list[str]:
        pages = [page(version, rank, prompts) for rank in order]
        joined = join_scrapes([f"http://host:{8000 + rank}/metrics" for rank in order], pages)
        assert split_scrapes(joined) == pages
        return split_scrapes(joined)

    _, _, together = happened(version)
    difference = subtract(read(*taken(0, [0, 1])), read(*taken(1, [1, 0])))
    assert difference.findings == ()
    assert difference.ranks == together.ranks


@every_version
def test_another_model_on_the_same_page_is_left_out(version: Version) -> None:
    def text(prompts: int) -> str:
        ours = "".join(page(version, rank, prompts) for rank in range(RANKS))
        other = "".join(page(version, rank, 7 * prompts + 1) for rank in range(RANKS))
        # cache_config_info has no model label, so it stands there once.
        return ours + other.replace(version.config.format(rank=0, blocks=2000), "").replace(
            version.config.format(rank=1, blocks=2000), ""
        ).replace('model_name="m"', 'model_name="m-draft}"')

    _, _, alone = happened(version)
    before = read(text(0))
    assert any("m-draft}" in note for note in before.notes)
    assert subtract(before, read(text(1))).ranks == alone.ranks


@every_version
def test_labels_are_mapped_to_ranks(version: Version) -> None:
    """A gateway named the engines; `service.engine_label_map` says which is which, and digits do not count then."""

    def text(prompts: int) -> str:
        return "".join(
            page(version, rank, prompts + rank).replace(f'engine="{rank}"', f'engine="{label}"')
            for rank, label in ((0, "dp-a"), (1, 'pod-7 "blue"}'.replace('"', '\\"')))
        )

    names = {"dp-a": 0, 'pod-7 "blue"}': 1}
    difference = subtract(read(text(0), engine_label_map=names), read(text(1), engine_label_map=names))
    _, _, usual = happened(version)
    assert difference.findings == ()
    assert [(rank.queries, rank.hits) for rank in difference.ranks] == [
        (rank.queries, rank.hits) for rank in usual.ranks
    ]
    with pytest.raises(ServiceError, match=r'engine="dp-a".*engine_label_map'):
        read(text(0))


@every_version
@pytest.mark.parametrize("ranks", [1, 4])
def test_one_rank_and_four(version: Version, ranks: int) -> None:
    def taken(prompts: int) -> EngineSnapshot:
        pages = [page(version, rank, prompts * (rank + 1)) for rank in range(ranks)]
        return read("".join(pages), dp_size=ranks)

    difference = subtract(taken(0), taken(1))
    per_pair = (2 * PROMPT, FOUND) if version.unit == "tokens" else (126, 63)
    assert [(rank.queries, rank.hits) for rank in difference.ranks] == [
        ((rank + 1) * per_pair[0], (rank + 1) * per_pair[1]) for rank in range(ranks)
    ]


def test_one_rank_needs_no_label() -> None:
    text = page(V0_12, 0, 1).replace('engine="0",', "")
    assert read(text, dp_size=1).ranks[0].queries == 5000 + 2 * PROMPT


@every_version
def test_a_missing_rank_is_named(version: Version) -> None:
    with pytest.raises(ServiceError, match=r"missing DP ranks: 1 \(seen: 0\)"):
        read(page(version, 0, 0))
    with pytest.raises(ServiceError, match=r"rank 1 .*outside 0\.\.0; correct service\.dp_size"):
        read(page(version, 0, 0) + page(version, 1, 0), dp_size=1)


@every_version
def test_a_rank_that_starts_again_falls_behind(version: Version) -> None:
    before = read(page(version, 0, 1) + page(version, 1, 1))
    after = read(page(version, 0, 2) + page(version, 1, 0, before=0))
    difference = subtract(before, after)
    assert {finding.code for finding in difference.findings} == {"COUNTER_WENT_BACKWARDS"}
    assert {finding.rank for finding in difference.findings} == {1}
    assert (difference.ranks[1].queries, difference.ranks[1].hits) == (None, None)
    assert difference.ranks[0].queries is not None
    assert (difference.queries, difference.hit_rate) == (None, None)
    assert not settling(before, after, after, expected_queries=None).settled


def test_a_start_time_tells_of_a_restart_that_counters_hide() -> None:
    """Behind one API server. With several there is no start time, so only a counter that fell tells it."""

    def text(prompts: int, started: float) -> str:
        return f"process_start_time_seconds {started}\n" + page(V0_33, 0, prompts)

    difference = subtract(read(text(0, 1.7e9), dp_size=1), read(text(1, 1.7e9 + 90), dp_size=1))
    assert [finding.code for finding in difference.findings] == ["ENGINE_RESTARTED"]


def test_an_upgrade_between_the_scrapes_is_no_difference() -> None:
    before = read("".join(page(V0_8_5, rank, 0) for rank in range(RANKS)))
    after = read("".join(page(V0_9_2, rank, 1) for rank in range(RANKS)))
    difference = subtract(before, after)
    assert [finding.code for finding in difference.findings] == ["COUNTER_CHANGED"]
    assert (difference.queries, difference.hits) == (None, None)


@pytest.mark.parametrize("bad", ["NaN", "-1.0", "+Inf", "0.5"])
def test_what_is_no_count_is_refused_where_it_matters_and_a_reason_elsewhere(bad: str) -> None:
    text = "".join(page(V0_33, rank, 1) for rank in range(RANKS))
    needed = 'vllm:prefix_cache_hits_total{engine="1",model_name="m"} '
    beside = 'vllm:prompt_tokens_cached_by_source_total{engine="1",model_name="m",source="device"} '

    def broken(series: str) -> str:
        assert series in text
        return (
            "\n".join(series + bad if line.startswith(series) else line for line in text.splitlines()) + "\n"
        )

    with pytest.raises(ServiceError, match=r"prefix_cache_hits_total.*is no count"):
        read(broken(needed))
    first, second = read(broken(beside)).ranks
    assert first.prompt_tokens_cached_by_source is not None
    assert second.prompt_tokens_cached_by_source is None
    assert "is no count" in second.unavailable["prompt_tokens_cached_by_source"]


def test_families_without_series_are_not_there_yet() -> None:
    """`vllm serve` shows the help of gauges whose processes have reported nothing so far."""
    gauges = ("vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting")
    lines = [
        line
        for line in "".join(page(V0_33, rank, 0) for rank in range(RANKS)).splitlines()
        if not line.startswith(gauges)
    ]
    for name in gauges:
        lines += [f"# HELP {name} What it shows.", f"# TYPE {name} gauge"]
    snapshot = read("\n".join(lines) + "\n")
    for rank in snapshot.ranks:
        for field, name in zip(
            ("kv_cache_usage", "requests_running", "requests_waiting"), gauges, strict=True
        ):
            assert getattr(rank, field) is None
            assert rank.unavailable[field] == f"the engine exposes no series of {name}"
    assert is_idle(snapshot) is None
    with pytest.raises(ServiceError, match="no prefix-cache queries and hits counter"):
        read("# HELP vllm:prefix_cache_queries_total x\n# TYPE vllm:prefix_cache_queries_total counter\n")


# What the cache looks like


def config(*pages: list[str], ranks: int = 1) -> Any:
    """cache_config of the last rank; each page is the labels of its ranks, in order."""
    texts, rank = [], 0
    for labels_of_ranks in pages:
        text = ""
        for labels in labels_of_ranks:
            text += page(V0_12, rank, 0) + f'vllm:cache_config_info{{engine="{rank}",{labels}}} 1.0\n'
            rank += 1
        texts.append(text)
    return read(*texts, dp_size=ranks).ranks[-1].cache_config


def test_blocks_of_a_page_are_those_of_all_its_ranks() -> None:
    shown = 'block_size="32",num_gpu_blocks="600",kv_cache_size_tokens="9600"'
    assert config([shown]).blocks_per_rank == 600
    assert config([shown, shown], ranks=2).blocks_per_rank == 300
    assert config([shown] * 4, ranks=4).blocks_per_rank == 150
    # A port for each rank: each shows its own. Two hosts with two ranks each: two ranks' on each page.
    assert config([shown], [shown], ranks=2).blocks_per_rank == 600
    assert config([shown] * 2, [shown] * 2, ranks=4).blocks_per_rank == 300
    # Every rank takes the override for itself.
    override = shown + ',num_gpu_blocks_override="300"'
    assert config([override, override], ranks=2).blocks_per_rank == 300
    # Pools of different size cannot be told from their sum.
    uneven = 'block_size="32",num_gpu_blocks="601"'
    assert config([uneven, uneven], ranks=2).blocks_per_rank is None
    assert config(['num_gpu_blocks="None",block_size="32"']).blocks_per_rank is None


def test_capacity_is_what_the_engine_says_without_the_placeholder_block() -> None:
    assert config(['block_size="32",num_gpu_blocks="600"'] * 2, ranks=2).capacity_tokens == 299 * 32
    said = 'block_size="32",num_gpu_blocks="600",kv_cache_size_tokens="9600"'
    assert config([said] * 2, ranks=2).capacity_tokens == 299 * 32
    # A hybrid model: a request takes blocks of several groups, so fewer tokens fit than blocks times size.
    hybrid = 'block_size="528",num_gpu_blocks="1000",kv_cache_size_tokens="240000"'
    assert config([hybrid]).capacity_tokens == 240000 - 528
    assert config(['num_gpu_blocks="600"']).capacity_tokens is None
    assert config(['block_size="32"']).capacity_tokens is None


@pytest.mark.parametrize(
    ("labels", "unit"),
    [
        ('block_size="16"', 16),
        ('block_size="16",prefix_match_unit="None",effective_attention_block_size="None"', 16),
        # Context parallelism over two: blocks of 16 tokens on each, 32 together.
        ('block_size="16",effective_attention_block_size="32"', 32),
        # A hybrid model with finer hashes.
        ('block_size="1056",effective_attention_block_size="1056",prefix_match_unit="32"', 32),
        # Asked for, but a group cannot look up within its block.
        ('block_size="528",prefix_match_unit="16",cache_hit_alignment_tokens="528"', 528),
        ('block_size="None"', None),
    ],
)
def test_a_hit_is_a_multiple_of_the_match_unit(labels: str, unit: int | None) -> None:
    assert config([labels]).match_unit == unit


# Speculation and tiers


def test_speculation_shows_in_its_families() -> None:
    drafts = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 0.0\n'
    assert read(page(V0_33, 0, 0), dp_size=1).speculative is False
    assert read(page(V0_33, 0, 0) + drafts, dp_size=1).speculative is True
    assert read(page(V0_33, 0, 0), page(V0_33, 1, 0) + drafts.replace('"0"', '"1"')).speculative is True
    old = read(page(V0_8_5, 0, 0), dp_size=1)
    assert old.speculative is None
    assert "0.8.x" in old.unavailable["speculative"]


def test_an_external_tier_shows_in_counters_families_or_settings() -> None:
    def tier(text: str) -> tuple[bool | None, str | None]:
        snapshot = read(text, dp_size=1)
        return snapshot.external_tier, snapshot.unavailable.get("external_tier")

    used = page(V0_33, 0, 1)
    asked = "vllm:external_prefix_cache_queries_total"
    assert tier(used) == (False, None)
    assert tier(used.replace(f'{asked}{{engine="0",model_name="m"}} 0.0', f'{asked}{{engine="0"}} 16.0')) == (
        True,
        None,
    )
    for family in ("vllm:kv_offload_load_bytes_total", "vllm:simple_kv_offload_used_blocks"):
        assert tier(used + f'{family}{{engine="0",model_name="m"}} 0.0\n') == (True, None)
    assert tier(used.replace("prefix_match_unit=", 'kv_offloading_size="4.0",prefix_match_unit=')) == (
        True,
        None,
    )
    unused = page(V0_33, 0, 0, before=0)
    assert tier(unused) == (None, "no request has been looked up yet")
    assert tier(page(V0_9_2, 0, 1)) == (
        None,
        "the engine exposes no series of vllm:external_prefix_cache_queries_total",
    )
