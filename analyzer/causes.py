"""Why two ledgers differ: the most likely cause, by the rules of vllm.md E.9, and what the engine's version adds."""

from dataclasses import dataclass

from analyzer.ledgers import LedgerDifference
from contract.engine_version import EngineVersion, is_before

INCLUDES_EXTERNAL = ("cached_tokens", "computed")
NO_CAUSE = "no known cause fits"


@dataclass(frozen=True)
class Circumstances:
    """What else is known about a measurement; None: it is not known.

    Attributes:
        version: of the engine, as `/version` said, read and as text.
        waiting_peak: most requests that waited on one rank in any sample.
        settled: whether the counters came to rest at what was answered.
        unanswered: requests that failed in the end, and attempts that were repeated.
        findings: codes of what the run found.
        all_but_one: every answer reports one cached token less than its prompt has.
        one_block_less: every request that hit something else than predicted hit exactly one block less.
        prediction_caveats: why the model may differ.
    """

    version: EngineVersion | None = None
    version_text: str | None = None
    waiting_peak: int | None = None
    preemptions: int | None = None
    external_hits: int | None = None
    settled: bool | None = None
    unanswered: int = 0
    findings: frozenset[str] = frozenset()
    all_but_one: bool = False
    one_block_less: bool = False
    prediction_caveats: tuple[str, ...] = ()

    def before(self, release: str) -> bool:
        """Whether the engine is, or may be, older than `release`."""
        return is_before(self.version, release) is not False


def likely_cause(difference: LedgerDifference, seen: Circumstances) -> str:
    """One line. The first rule that fits the sign of the difference and the circumstances."""
    if difference.second == "prediction":
        return _of_prediction(difference, seen)
    rules = _more_queries if difference.quantity == "queries" else _more_hits
    return rules(difference, seen) if difference.tokens > 0 else _fewer(difference, seen)


def _fewer(difference: LedgerDifference, seen: Circumstances) -> str:
    """The first ledger is higher; usually the counters, which see all traffic and see it at admission."""
    tokens = -difference.tokens
    if difference.first == "counters" and _counted_again(seen):
        return _again(seen)
    if seen.unanswered and difference.second == "cached_tokens":
        return (
            f"{seen.unanswered} failed or repeated attempts: the engine counted tokens that no answer reports"
        )
    if seen.unanswered and difference.second == "computed":
        return (
            f"{seen.unanswered} failed or repeated attempts: this ledger counts only requests that ended well"
        )
    if difference.tokens == 0:
        return "the ranks differ though the sums agree: requests were served by other ranks than they were sent to"
    if difference.second == "cached_tokens" and "FOREIGN_TRAFFIC" in seen.findings:
        return f"foreign traffic: others used the engine while it was measured ({tokens} tokens)"
    if seen.settled is False:
        return "the counters had not come to rest when the last scrape was taken"
    if difference.second == "cached_tokens" and difference.quantity == "queries":
        return "foreign traffic, or requests that the engine served and no answer reports"
    return NO_CAUSE


def _counted_again(seen: Circumstances) -> bool:
    waited = seen.waiting_peak is None or seen.waiting_peak > 0
    return (seen.before("0.27.1") and waited) or (seen.before("0.11.1") and bool(seen.preemptions))


def _again(seen: Circumstances) -> str:
    cause = "requests that waited for free blocks were counted again on each scheduling retry"
    sampled = seen.waiting_peak is not None or seen.preemptions
    return cause if sampled else f"{cause} (whether any waited was not sampled)"


def _more_hits(difference: LedgerDifference, seen: Circumstances) -> str:
    if difference.second in INCLUDES_EXTERNAL and seen.external_hits:
        exactly = "exactly " if seen.external_hits == difference.tokens else ""
        return (
            f"external cache: {difference.second} includes what a KV connector delivered, "
            f"{exactly}{seen.external_hits} tokens by the external counters"
        )
    if seen.all_but_one and difference.second == "cached_tokens":
        return "a disaggregated decode instance reports all but one token of each prompt as cached"
    if (cause := _counters_lag(difference, seen)) is not None:
        return cause
    if difference.second in INCLUDES_EXTERNAL and seen.external_hits is None:
        return f"perhaps an external cache: {difference.second} includes it, and this engine has no counters of it"
    return NO_CAUSE


def _more_queries(difference: LedgerDifference, seen: Circumstances) -> str:
    if (cause := _counters_lag(difference, seen)) is not None:
        return cause
    return (
        "lookups were skipped: requests with prompt_logprobs, or that skip reading the cache, are not counted"
    )


def _counters_lag(difference: LedgerDifference, seen: Circumstances) -> str | None:
    """Reasons for counters that show too little."""
    if difference.first != "counters":
        return None
    if seen.preemptions and not seen.before("0.11.1"):
        return f"{seen.preemptions} preemptions: resumed requests are left out of these counters"
    if seen.settled is False:
        if len(difference.by_dp) == 1:
            return f"the counters of rank {next(iter(difference.by_dp))} had not come to rest"
        return "the counters had not come to rest when the last scrape was taken"
    return None


def _of_prediction(difference: LedgerDifference, seen: Circumstances) -> str:
    if seen.prediction_caveats:
        return f"the prediction is not certain: {seen.prediction_caveats[0]}"
    if difference.tokens > 0:
        if (cause := _counters_lag(difference, seen)) is not None:
            return cause
        if seen.one_block_less:
            return "one block less per request: a server with EAGLE or MTP speculation drops the last matched block"
        return (
            "the engine found less than its blocks allow: another match unit, other block sizes in the pool, "
            "or the cache was emptied meanwhile"
        )
    if difference.tokens < 0 and difference.first == "counters" and _counted_again(seen):
        return _again(seen)
    if difference.tokens == 0:
        return "the ranks differ though the sums agree: requests were served by other ranks than they were sent to"
    if seen.external_hits and difference.first in INCLUDES_EXTERNAL:
        return f"external cache: {difference.first} includes what a KV connector delivered"
    return "the cache was not empty at the beginning, or others filled it while it was measured"


def version_caveat(difference: LedgerDifference, seen: Circumstances) -> str | None:
    """What is known to be special about these ledgers in the engine's version; None when nothing is."""
    ledgers = {difference.first, difference.second}
    notes = []
    if "counters" in ledgers:
        if is_before(seen.version, "0.9.0"):
            notes.append("before 0.9.0 they count full blocks, not tokens")
        if seen.before("0.11.1"):
            notes.append("before 0.11.1 preempted requests are counted again (issue #25780)")
        if seen.before("0.27.1"):
            notes.append(
                "before 0.27.1 a waiting request is counted again on each scheduling retry (issue #43736)"
            )
    if "computed" in ledgers and is_before(seen.version, "0.13.0"):
        notes.append("request_prefill_kv_computed_tokens is known from 0.13.0 on")
    if "by_source" in ledgers and is_before(seen.version, "0.16.0"):
        notes.append("prompt_tokens_by_source is known from 0.16.0 on")
    if not notes:
        return None
    stated = f"the engine says {seen.version_text}" if seen.version_text else "the engine states no version"
    return f"{stated}; {'; '.join(notes)}"
