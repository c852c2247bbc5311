"""Every known fault beside every set of ledgers: the one right cause, or all that no ledger refutes."""

from collections.abc import Iterator, Mapping
from itertools import chain, combinations
from typing import Any

import pytest

from analyzer.causes import NO_CAUSE, Cause, Circumstances, Explanation, explain, version_caveat
from analyzer.known_causes import KNOWN
from analyzer.ledgers import NAMES, Ledger, LedgerDifference, Tokens
from contract.engine_version import parse_version

HITS, QUERIES = 600, 1000
OLD, NEW = "0.26.0", "0.32.0"


def difference(second: str, tokens: int, quantity: str = "hits", **ranks: int) -> LedgerDifference:
    by_dp = {int(name.removeprefix("rank_")): value for name, value in ranks.items()}
    return LedgerDifference("counters", second, quantity, tokens, by_dp)


def ledgers(hits: Mapping[str, int | None] = {}, queries: Mapping[str, int | None] = {}) -> dict[str, Ledger]:
    """All equal, but for what is added; None: not known."""

    def value(base: int, more: int | None) -> int | None:
        return None if more is None else base + more

    return {
        name: Ledger(Tokens(value(HITS, hits.get(name, 0)), value(QUERIES, queries.get(name, 0))))
        for name in NAMES
    }


def seen(version: str | None = NEW, **known: Any) -> Circumstances:
    return Circumstances(parse_version(version), version, **{"settled": True, "waiting_peak": 0, **known})


def names(explanation: Explanation) -> list[list[str]]:
    return [
        [cause.name for cause in causes]
        for causes in (explanation.causes, *explanation.alternatives)
        if causes
    ]


ENGINE = ("counters", "by_source", "computed")
# Fault -> what it adds to hits and to queries, what is known about it, and a word of its text.
FAULTS: dict[str, tuple[dict[str, int], dict[str, int], Circumstances, str]] = {
    "counted_again": ({"counters": 64}, {"counters": 200}, seen(OLD, waiting_peak=3), "scheduling retry"),
    "unanswered_attempts": (
        {"counters": 32, "by_source": 32},
        {"counters": 90, "by_source": 90},
        seen(unanswered=1),
        "1 failed or repeated",
    ),
    "foreign_traffic": (
        dict.fromkeys(ENGINE, 48),
        dict.fromkeys(ENGINE, 777),
        seen(settled=False),
        "foreign traffic",
    ),
    "external_cache": (
        {"cached_tokens": 48, "computed": 48},
        {},
        seen(external_hits=48),
        "exactly 48 tokens",
    ),
    "disaggregated_decode": ({"cached_tokens": 376}, {}, seen(all_but_one=True), "all but one token"),
    "preempted_left_out": ({"counters": -32}, {"counters": -64}, seen(preemptions=2), "2 preemptions"),
    "drops_last_block": ({"prediction": 64}, {}, seen(one_block_less=True), "EAGLE or MTP"),
    "found_less": ({"prediction": 37}, {}, seen(), "found less than its blocks allow"),
    "found_more": ({"prediction": -32}, {}, seen(), "not empty at the beginning"),
    "other_prompt_tokens": ({}, {"prediction": -24}, seen(prompt_tokens_differing=24), "another tokenizer"),
}


def some(of: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(of, count) for count in range(len(of) + 1))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("quantity", ["hits", "queries"])
def test_with_all_ledgers_at_hand_the_cause_is_the_right_one_alone(fault: str, quantity: str) -> None:
    hits, queries, known, text = FAULTS[fault]
    added = hits if quantity == "hits" else queries
    found = explain(quantity, ledgers(hits, queries), known, KNOWN)
    if not added:
        assert names(found) == []
        return
    assert names(found) == [[fault]]
    first = "counters"
    other = next(name for name in NAMES[1:] if added.get(name, 0) != added.get(first, 0))
    tokens = added.get(other, 0) - added.get(first, 0)
    assert text in found.cause_of(difference(other, tokens, quantity))
    ruled_out = found.document()["ruled_out"]
    assert isinstance(ruled_out, dict)
    assert ruled_out.keys() == {cause.name for cause in KNOWN} - {fault}
    assert all(ruled_out.values())


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("missing", list(some(NAMES)))
def test_with_fewer_ledgers_no_cause_is_named_that_one_of_them_refutes(
    fault: str, missing: tuple[str, ...]
) -> None:
    """The right cause is among those that are named, unless too little is left to show it; the others fit as well."""
    hits, queries, known, _ = FAULTS[fault]
    absent = dict.fromkeys(missing)
    at_hand = ledgers({**hits, **absent}, {**queries, **absent})
    for quantity, added in (("hits", hits), ("queries", queries)):
        values = {name: added.get(name, 0) for name in NAMES if name not in missing}
        found = explain(quantity, at_hand, known, KNOWN)
        if len(set(values.values())) < 2:
            assert names(found) == []
            continue
        sets = (found.causes, *found.alternatives)
        assert fault in {cause.name for causes in sets for cause in causes}
        for causes in sets:
            assert consistent(causes, quantity, values), [cause.name for cause in causes]


def consistent(causes: tuple[Cause, ...], quantity: str, values: Mapping[str, int]) -> bool:
    """An oracle of its own: for some true value every ledger lies on the side to which the causes move it, or there."""
    moved: dict[str, int] = {}
    for cause in causes:
        moved |= cause.moves[quantity]
    free = {name for cause in causes for name in cause.loose}
    return any(
        all(
            (value - true) * moved[name] > 0 if name in moved else value == true or name in free
            for name, value in values.items()
        )
        for true in values.values()
    )


def test_three_ledgers_refute_foreign_traffic() -> None:
    found = explain("queries", ledgers(queries={"counters": 160}), seen(settled=False), KNOWN)
    assert names(found) == []
    assert found.cause_of(difference("cached_tokens", -160, "queries")) == NO_CAUSE
    assert "by_source" in found.document()["ruled_out"]["foreign_traffic"]  # type: ignore[index]


def test_counting_again_of_old_versions_is_not_called_foreign_traffic() -> None:
    found = explain("queries", ledgers(queries={"counters": 160}), seen(OLD, waiting_peak=5), KNOWN)
    assert names(found) == [["counted_again"]]


def test_what_cannot_be_told_apart_is_said_with_what_would_tell() -> None:
    silent = {"by_source": None, "computed": None}
    known = seen(OLD, waiting_peak=None)
    found = explain("queries", ledgers(silent, {"counters": 160, **silent}), known, KNOWN)
    assert names(found) == [["counted_again"], ["foreign_traffic"]]
    text = found.cause_of(difference("cached_tokens", -160, "queries"))
    assert "scheduling retry" in text
    assert "; or foreign traffic" in text
    assert text.endswith("(by_source or computed would tell)")


def test_two_causes_at_once_are_both_named_each_for_its_own_ledgers() -> None:
    added = {"counters": 64, "cached_tokens": 48, "computed": 48}
    found = explain("hits", ledgers(added), seen(OLD, waiting_peak=3, external_hits=48), KNOWN)
    assert names(found) == [["counted_again", "external_cache"]]
    assert "scheduling retry" in found.cause_of(difference("by_source", -64))
    assert "external" not in found.cause_of(difference("by_source", -64))
    both = found.cause_of(difference("cached_tokens", -16))
    assert "scheduling retry" in both
    assert "external cache" in both


def test_a_cause_of_hits_is_not_given_for_queries() -> None:
    found = explain("queries", ledgers(queries={"prediction": 24}), seen(), KNOWN)
    assert found.cause_of(difference("prediction", 24, "queries")) == NO_CAUSE


def test_a_proved_reset_refutes_a_full_cache() -> None:
    emptied = explain("hits", ledgers({"prediction": -32}), seen(emptied=True), KNOWN)
    assert emptied.cause_of(difference("prediction", -32)) == NO_CAUSE
    shared = ledgers({"prediction": -32}, dict.fromkeys(ENGINE, 100))
    text = explain("hits", shared, seen(emptied=True, settled=False), KNOWN).cause_of(
        difference("prediction", -32)
    )
    assert text == "others filled it while it was measured"


def test_counters_that_show_too_much_had_not_failed_to_come_to_rest() -> None:
    found = explain("queries", ledgers(queries={"counters": 160}), seen(settled=False), KNOWN)
    assert "come to rest" not in found.cause_of(difference("cached_tokens", -160, "queries"))
    lag = explain("queries", ledgers(queries={"counters": -160}), seen(settled=False), KNOWN)
    assert "rank 1 had not come to rest" in lag.cause_of(
        difference("cached_tokens", 160, "queries", rank_1=160)
    )


@pytest.mark.parametrize(
    ("version", "waiting", "again"),
    [
        ("0.26.0", 3, True),
        ("0.26.0", 0, False),
        ("0.26.0", None, True),
        ("0.27.1", 3, False),
        (None, 3, True),
    ],
)
def test_counting_again_takes_an_old_engine_and_waiting(
    version: str | None, waiting: int | None, again: bool
) -> None:
    known = seen(version, waiting_peak=waiting)
    cause = explain("hits", ledgers({"counters": 64}), known, KNOWN).cause_of(
        difference("cached_tokens", -64)
    )
    assert ("scheduling retry" in cause) is again
    assert ("not sampled" in cause) is (waiting is None)
    if not again:
        assert cause == NO_CAUSE


def test_preempted_requests_were_counted_again_before_0_11_1() -> None:
    known = seen("0.10.2", preemptions=1)
    found = explain("hits", ledgers({"counters": 64}), known, KNOWN)
    assert "scheduling retry" in found.cause_of(difference("by_source", -64))
    assert "#25780" in str(version_caveat(difference("by_source", -64), known))


def test_an_engine_without_external_counters_may_still_have_an_external_cache() -> None:
    alone = ledgers({"cached_tokens": 64, "by_source": None, "computed": None, "prediction": None})
    perhaps = explain("hits", alone, seen("0.11.0", external_hits=None), KNOWN)
    assert perhaps.cause_of(difference("cached_tokens", 64)).startswith("perhaps an external cache")
    none = explain("hits", alone, seen(external_hits=0), KNOWN)
    assert none.cause_of(difference("cached_tokens", 64)) == NO_CAUSE


def test_a_prediction_that_is_not_certain_says_so_first() -> None:
    known = seen(prediction_caveats=("blocks were evicted",), one_block_less=True)
    found = explain("hits", ledgers({"prediction": 16}), known, KNOWN)
    assert (
        found.cause_of(difference("prediction", 16)) == "the prediction is not certain: blocks were evicted"
    )


@pytest.mark.parametrize(
    ("ledger", "version", "text"),
    [
        ("computed", "0.12.0", "0.13.0"),
        ("by_source", "0.14.1", "0.16.0"),
        ("cached_tokens", "0.8.5", "full blocks"),
    ],
)
def test_caveats_name_what_the_version_cannot(ledger: str, version: str, text: str) -> None:
    caveat = version_caveat(difference(ledger, 1), Circumstances(parse_version(version), version))
    assert caveat is not None
    assert caveat.startswith(f"the engine says {version}; ")
    assert text in caveat


def test_a_recent_engine_has_no_caveat() -> None:
    for ledger in ("by_source", "cached_tokens", "computed", "prediction"):
        known = Circumstances(parse_version("0.33.0+cu129"), "0.33.0+cu129")
        assert version_caveat(difference(ledger, 1), known) is None
