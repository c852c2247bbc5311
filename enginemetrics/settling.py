"""When the counters of an engine have caught up with the traffic it served. Decisions only; no waiting here.

vLLM hands its scheduler's statistics to one front end per step, so a scrape right after the last answer can miss
the last step. Settled means: the queries difference equals the prompt tokens that were served, then two equal
scrapes.
"""

from dataclasses import dataclass

from enginemetrics.difference import EngineDifference, subtract
from enginemetrics.names import BREAKDOWNS, COUNTERS
from enginemetrics.snapshot import EngineSnapshot


def is_idle(snapshot: EngineSnapshot) -> bool | None:
    """Whether no rank has a running or a waiting request. None: a gauge is missing and no other says busy."""
    loads = [load for rank in snapshot.ranks for load in (rank.requests_running, rank.requests_waiting)]
    if any(loads):
        return False
    return None if None in loads else True


def same_counters(one: EngineSnapshot, other: EngineSnapshot) -> bool:
    """Whether two snapshots show equal counters on equal ranks. Gauges may differ."""
    names = ("rank", "queries", "hits", *COUNTERS, *BREAKDOWNS)

    def counters(snapshot: EngineSnapshot) -> list[object]:
        return [getattr(rank, name) for rank in snapshot.ranks for name in names]

    return one.metric_names == other.metric_names and counters(one) == counters(other)


@dataclass(frozen=True, slots=True)
class Settling:
    """The state of a wait for the counters.

    Attributes:
        queries: queries difference so far, in `unit` of the snapshots; None when it is not measurable.
        missing: expected minus counted tokens (negative: more than expected); None when not comparable.
        reason: one line for a log or a finding.
        foreign: more was counted than was answered, and no other counter of the page speaks against other traffic.
    """

    settled: bool
    queries: int | None
    missing: int | None
    reason: str
    foreign: bool = False


def settling(
    baseline: EngineSnapshot,
    previous: EngineSnapshot | None,
    current: EngineSnapshot,
    *,
    expected_queries: int | None,
) -> Settling:
    """Judge the newest of a series of scrapes.

    Args:
        previous: the scrape before `current`; None at the first.
        expected_queries: sum of `usage.prompt_tokens` of all answers, in tokens; None when a request's usage is
            unknown. Then, and where the engine counts blocks, only the two equal scrapes are asked for.
    """
    difference = subtract(baseline, current)
    if difference.findings:
        return Settling(False, difference.queries, None, difference.findings[0].message)
    queries, missing = difference.queries, None
    if expected_queries is not None and queries is not None and difference.unit == "tokens":
        missing = expected_queries - queries
        if missing > 0:
            return Settling(
                False, queries, missing, f"the counters lack {missing} of {expected_queries} prompt tokens"
            )
        if missing < 0:
            reason, foreign = _surplus(difference, -missing, expected_queries)
            return Settling(False, queries, missing, reason, foreign)
    if previous is None or not same_counters(previous, current):
        return Settling(False, queries, missing, "waiting for a second, equal scrape")
    return Settling(True, queries, missing, "two equal scrapes")


def _surplus(difference: EngineDifference, more: int, expected: int) -> tuple[str, bool]:
    """What lookups that show too much mean, by what the front end's counter says, and whether it is other traffic."""
    witness = [rank.prompt_tokens for rank in difference.ranks]
    seen = f"the lookups show {more} prompt tokens more than the {expected} that were answered"
    if None in witness:
        return (
            f"{seen}: foreign traffic, or lookups that were counted again (no other counter here tells)",
            True,
        )
    prompt_tokens = sum(count or 0 for count in witness)
    if prompt_tokens <= expected:
        return (
            f"{seen}, vllm:prompt_tokens shows {prompt_tokens}: lookups are counted wrongly, not by other clients",
            False,
        )
    return f"{seen}, vllm:prompt_tokens {prompt_tokens - expected}: foreign traffic", True
