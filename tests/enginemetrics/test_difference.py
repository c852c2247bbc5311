from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginemetrics import EngineSnapshot, MetricNames, RankMetrics, same_counters, settling, subtract
from enginemetrics.difference import another_process
from enginemetrics.settling import is_idle

NAMES = MetricNames("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", None)


def snapshot(*ranks, unit="tokens", names=NAMES, started=(None,)):
    return EngineSnapshot(tuple(ranks), unit, names, started, ())


def rank(number, queries, hits=0, **kw):
    return RankMetrics(rank=number, queries=queries, hits=hits, **kw)


def codes(difference):
    return [(finding.code, finding.rank) for finding in difference.findings]


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 2**40)] * 4), min_size=1, max_size=4))
def test_differences_add_up(rows):
    before = snapshot(*(rank(i, a + b, b) for i, (a, b, _, _) in enumerate(rows)))
    after = snapshot(*(rank(i, a + b + c + d, b + d) for i, (a, b, c, d) in enumerate(rows)))
    difference = subtract(before, after)
    assert difference.findings == ()
    assert [(r.queries, r.hits) for r in difference.ranks] == [(c + d, d) for _, _, c, d in rows]
    assert difference.queries == sum(c + d for _, _, c, d in rows)
    total = difference.queries
    assert difference.hit_rate == (sum(d for *_, d in rows) / total if total else None)


def test_a_counter_that_fell_is_a_finding_and_no_number():
    difference = subtract(snapshot(rank(0, 10, 5), rank(1, 10, 5)), snapshot(rank(0, 12, 4), rank(1, 13, 6)))
    assert codes(difference) == [("COUNTER_WENT_BACKWARDS", 0)]
    assert "hits fell from 5 to 4" in difference.findings[0].message
    first, second = difference.ranks
    assert (first.queries, first.hits) == (2, None)
    assert "fell" in first.unavailable["hits"]
    assert (second.queries, second.hits) == (3, 1)
    assert (difference.queries, difference.hits, difference.hit_rate) == (5, None, None)


@pytest.mark.parametrize("started", [((1.0,), (2.0,)), ((None,), (None,)), ((1.0,), (1.0,))])
def test_an_engine_that_began_anew_is_one_finding(started):
    """Whatever fell: each number keeps its own reason."""
    counters = {"queries": 9, "hits": 5, "prompt_tokens": 9, "generation_tokens": 3, "preemptions": 2}
    was, now = (
        snapshot(*(rank(i, **{name: value * factor for name, value in counters.items()}) for i in range(4)), started=at)
        for factor, at in zip((2, 1), started, strict=True)
    )  # fmt: skip
    difference = subtract(was, now)
    restarted = started[0] != started[1]
    assert codes(difference) == [("ENGINE_RESTARTED" if restarted else "COUNTER_WENT_BACKWARDS", None)]
    assert ("(and 19 more of the kind); " in difference.findings[0].message) is not restarted
    for found in difference.ranks:
        assert (found.queries, found.hits, found.preemptions) == (None, None, None)
        assert all(f"rank {found.rank}" in found.unavailable[name] for name in counters)


def test_optional_counters():
    before = rank(0, 1, prompt_tokens=5, request_success={"stop": 2, "length": 1}, preemptions=3)
    after = rank(
        0, 1, prompt_tokens=9, request_success={"stop": 4, "length": 1, "abort": 1}, preemptions=1,
        external_hits=7, unavailable={"generation_tokens": "not exposed"},
    )  # fmt: skip
    difference = subtract(snapshot(before), snapshot(after))
    got = difference.ranks[0]
    assert got.prompt_tokens == 4
    assert got.request_success == {"stop": 2, "length": 0, "abort": 1}
    assert (got.preemptions, got.external_hits, got.generation_tokens) == (None, None, None)
    assert got.unavailable["external_hits"].startswith("before")
    assert codes(difference) == [("COUNTER_WENT_BACKWARDS", 0)]


def test_a_part_that_fell_or_vanished():
    before = rank(0, 1, prompt_tokens_by_source={"a": 5, "b": 1})
    for parts, word in (({"a": 4, "b": 1}, "{a} fell from 5 to 4"), ({"a": 5}, "{b} fell from 1 to 0")):
        difference = subtract(snapshot(before), snapshot(replace(before, prompt_tokens_by_source=parts)))
        assert difference.ranks[0].prompt_tokens_by_source is None
        assert word in difference.ranks[0].unavailable["prompt_tokens_by_source"]
        assert codes(difference) == [("COUNTER_WENT_BACKWARDS", 0)]


def test_other_ranks():
    difference = subtract(snapshot(rank(0, 1), rank(1, 1)), snapshot(rank(1, 4), rank(2, 1)))
    assert codes(difference) == [("RANKS_CHANGED", None)]
    assert [(r.rank, r.queries) for r in difference.ranks] == [(1, 3)]


@pytest.mark.parametrize(("was", "now"), [((2.0,), (1.98,)), ((1.0, 5.0), (1.0, 4.0))])
def test_a_start_time_that_goes_back_is_another_process(was, now):
    difference = subtract(snapshot(rank(0, 1), started=was), snapshot(rank(0, 2), started=now))
    (finding,) = difference.findings
    assert finding.code == "METRICS_NOT_THIS_ENGINE"
    assert "restart" not in finding.message
    assert "went back from" in finding.seen


def test_counters_that_began_earlier_are_another_process():
    difference = subtract(
        snapshot(rank(0, 1, counters_created=6.0)), snapshot(rank(0, 2, counters_created=5.0))
    )
    assert codes(difference) == [("METRICS_NOT_THIS_ENGINE", 0)]


def test_a_fall_beside_an_equal_start_time_is_no_restart():
    def fall(started):
        before, after = (snapshot(rank(0, queries), started=(started,)) for queries in (5, 4))
        return subtract(before, after).findings[0].message

    assert "no restart" in fall(7.0)
    assert "another process answered, or this counter is broken" in fall(7.0)
    assert "the engine restarted or another one answered" in fall(None)


@pytest.mark.parametrize(
    ("before", "after", "proved"),
    [
        (snapshot(rank(0, 5), started=(2.0,)), snapshot(rank(0, 9), started=(1.0,)), True),
        (snapshot(rank(0, 5), started=(1.0,)), snapshot(rank(0, 0), started=(2.0,)), False),
        (snapshot(rank(0, 5), started=(1.0,)), snapshot(rank(0, 4), started=(1.0,)), True),
        (snapshot(rank(0, 5), started=(None,)), snapshot(rank(0, 4), started=(None,)), False),
        # The lookups fell and the front end's counter went on: that counter is broken.
        (
            snapshot(rank(0, 5, prompt_tokens=5), started=(1.0,)),
            snapshot(rank(0, 4, prompt_tokens=9), started=(1.0,)),
            False,
        ),
        (
            snapshot(rank(0, 5, prompt_tokens=5), started=(1.0,)),
            snapshot(rank(0, 9, prompt_tokens=4), started=(1.0,)),
            True,
        ),
    ],
)
def test_another_process_is_proved_only_where_a_restart_is_not_possible(before, after, proved):
    told = another_process(before, after)
    assert (told is not None) is proved
    assert told is None or "restart" not in told


@pytest.mark.parametrize(
    ("was", "now", "restarted"),
    [
        ((1.0,), (2.0,), True),
        ((1.0,), (1.0,), False),
        ((None,), (1.0,), False),
        ((1.0, 5.0), (1.0, 6.0), True),
    ],
)
def test_a_changed_start_time_is_a_restart(was, now, restarted):
    difference = subtract(snapshot(rank(0, 1), started=was), snapshot(rank(0, 2), started=now))
    assert codes(difference) == ([("ENGINE_RESTARTED", None)] if restarted else [])


def test_counters_that_began_anew_are_a_restart():
    difference = subtract(
        snapshot(rank(0, 1, counters_created=5.0)), snapshot(rank(0, 2, counters_created=6.0))
    )
    assert codes(difference) == [("ENGINE_RESTARTED", 0)]


def test_another_unit():
    names = MetricNames("vllm:gpu_prefix_cache_queries", "vllm:gpu_prefix_cache_hits", None)
    difference = subtract(
        snapshot(rank(0, 1), unit="blocks", names=names), snapshot(rank(0, 200, prompt_tokens=1))
    )
    assert codes(difference) == [("COUNTER_CHANGED", None)]
    assert (difference.queries, difference.hits) == (None, None)
    assert difference.ranks[0].unavailable["queries"]


def test_more_hits_than_queries():
    difference = subtract(snapshot(rank(0, 100, 1)), snapshot(rank(0, 101, 50)))
    assert codes(difference) == [("HITS_EXCEED_QUERIES", 0)]


@pytest.mark.parametrize(
    ("loads", "idle"),
    [
        ([(0, 0), (0, 0)], True),
        ([(0, 0), (0, 1)], False),
        ([(None, 0)], None),
        ([(None, None), (2, 0)], False),
    ],
)
def test_idle(loads, idle):
    ranks = [rank(i, 1, requests_running=r, requests_waiting=w) for i, (r, w) in enumerate(loads)]
    assert is_idle(snapshot(*ranks)) is idle


def test_equal_counters_ignore_gauges():
    one = snapshot(rank(0, 5, 1, kv_cache_usage=0.5, requests_running=1))
    assert same_counters(one, snapshot(rank(0, 5, 1, kv_cache_usage=0.0)))
    assert not same_counters(one, snapshot(rank(0, 5, 2)))
    assert not same_counters(one, snapshot(rank(0, 5, 1, generation_tokens=3)))
    assert not same_counters(one, snapshot(rank(1, 5, 1)))


def test_settling_step_by_step():
    baseline, late, full = snapshot(rank(0, 100)), snapshot(rank(0, 150)), snapshot(rank(0, 180, 3))

    def state(previous, current, expected=80):
        return settling(baseline, previous, current, expected_queries=expected)

    first = state(None, late)
    assert (first.settled, first.queries, first.missing) == (False, 50, 30)
    # Two equal scrapes that lack tokens are not settled.
    assert not state(late, late).settled
    second = state(late, full)
    assert (second.settled, second.missing) == (False, 0)
    third = state(full, full)
    assert (third.settled, third.queries, third.missing) == (True, 80, 0)
    foreign = state(full, full, expected=79)
    assert (foreign.settled, foreign.missing) == (False, -1)
    assert "foreign" in foreign.reason
    # Without an expectation equality is all there is to ask for.
    assert state(late, late, expected=None).settled
    assert not state(None, late, expected=None).settled


def test_settling_of_block_counters_asks_for_equality_only():
    before, after = snapshot(rank(0, 1), unit="blocks"), snapshot(rank(0, 3), unit="blocks")
    got = settling(before, after, after, expected_queries=32)
    assert (got.settled, got.queries, got.missing) == (True, 2, None)


def test_settling_never_ends_on_a_restarted_engine():
    before, after = snapshot(rank(0, 50)), snapshot(rank(0, 10))
    got = settling(before, after, after, expected_queries=0)
    assert not got.settled
    assert "fell" in got.reason
