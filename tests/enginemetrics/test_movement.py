"""What two counters together tell of tokens that were sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginemetrics.movement import Verdict, movement
from enginemetrics.snapshot import EngineSnapshot, MetricNames, RankMetrics

NAMES = MetricNames("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", None)


def page(*ranks: tuple[int, int | None], unit: str = "tokens") -> EngineSnapshot:
    """Lookups and prompt tokens of each rank."""
    return EngineSnapshot(
        tuple(
            RankMetrics(rank=number, queries=lookups, hits=0, prompt_tokens=prompt)
            for number, (lookups, prompt) in enumerate(ranks)
        ),
        unit,  # type: ignore[arg-type]
        NAMES,
        (None,),
        (),
    )


@pytest.mark.parametrize(
    ("before", "after", "rank", "verdict"),
    [
        ([(5, 5), (5, 5)], [(5, 5), (55, 55)], 1, "counted"),
        ([(5, None), (5, None)], [(35, None), (25, None)], None, "counted"),
        ([(5, 5), (5, 5)], [(55, 55), (5, 5)], 1, "elsewhere"),
        ([(0, 5)], [(0, 55)], 0, "not_counting"),
        ([(5, 5)], [(5, 55)], 0, "not_counting"),
        ([(0, None)], [(0, None)], 0, "not_counting"),
        ([(5, None)], [(5, None)], 0, "missing"),
        ([(0, 0)], [(0, 0)], 0, "missing"),
        ([(0, 0)], [(25, 25)], 0, "missing"),
        ([(0, None)], [(25, None)], 0, "missing"),
        ([(0, 0)], [(25, 50)], 0, "left_out"),
        ([(0, 0)], [(75, 75)], 0, "more"),
        ([(0, None)], [(75, None)], 0, "more"),
        ([(0, 0)], [(75, 50)], 0, "counted_again"),
        ([(0, 0)], [(0, 75)], 0, "more"),
    ],
)
def test_verdicts(
    before: list[tuple[int, int | None]],
    after: list[tuple[int, int | None]],
    rank: int | None,
    verdict: Verdict,
) -> None:
    assert movement(page(*before), page(*after)).verdict(50, rank) == verdict


@pytest.mark.parametrize(("prompt", "verdict"), [(None, "counted"), (50, "counted"), (0, "missing")])
def test_an_engine_that_counts_blocks_is_judged_by_its_front_end(
    prompt: int | None, verdict: Verdict
) -> None:
    start = None if prompt is None else 0
    moved = movement(page((0, start), unit="blocks"), page((3, prompt), unit="blocks"))
    assert moved.lookups is None
    assert moved.verdict(50, 0) == verdict


@given(st.lists(st.integers(0, 500), min_size=2, max_size=4), st.integers(1, 1000))
def test_a_page_that_shows_a_part_is_never_counted(shares: list[int], sent: int) -> None:
    """Whatever a balancer keeps back: the page of one engine is proved only by all that was sent."""
    start = page(*((0, 0) for _ in shares))
    verdict = movement(start, page(*((share, share) for share in shares))).verdict(sent, None)
    total = sum(shares)
    assert verdict == ("counted" if total == sent else "more" if total > sent else "missing")
