"""Rules that need samples or settings a synthetic measurement does not have."""

import pytest

from analyzer.causes import NO_CAUSE, Circumstances, likely_cause, version_caveat
from analyzer.ledgers import LedgerDifference
from contract.engine_version import parse_version


def difference(second: str, tokens: int, quantity: str = "hits") -> LedgerDifference:
    return LedgerDifference("counters", second, quantity, tokens, {})


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
    seen = Circumstances(parse_version(version), version, waiting_peak=waiting, settled=True)
    cause = likely_cause(difference("cached_tokens", -64), seen)
    assert ("scheduling retry" in cause) is again
    assert ("not sampled" in cause) is (waiting is None)
    if not again:
        assert cause == NO_CAUSE


def test_preempted_requests_were_counted_again_before_0_11_1() -> None:
    seen = Circumstances(parse_version("0.10.2"), "0.10.2", waiting_peak=0, preemptions=1)
    assert "scheduling retry" in likely_cause(difference("by_source", -64), seen)
    assert "#25780" in str(version_caveat(difference("by_source", -64), seen))


def test_an_engine_without_external_counters_may_still_have_an_external_cache() -> None:
    seen = Circumstances(parse_version("0.11.0"), "0.11.0", external_hits=None, settled=True)
    assert likely_cause(difference("cached_tokens", 64), seen).startswith("perhaps an external cache")
    known = Circumstances(parse_version("0.32.0"), "0.32.0", external_hits=0, settled=True)
    assert likely_cause(difference("cached_tokens", 64), known) == NO_CAUSE


def test_a_prediction_that_is_not_certain_says_so_first() -> None:
    seen = Circumstances(prediction_caveats=("blocks were evicted",), one_block_less=True)
    assert (
        likely_cause(difference("prediction", 16), seen)
        == "the prediction is not certain: blocks were evicted"
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
        seen = Circumstances(parse_version("0.33.0+cu129"), "0.33.0+cu129")
        assert version_caveat(difference(ledger, 1), seen) is None
