"""What a reader of a bench's numbers has to be told. Pure: from evidence to findings."""

from collections.abc import Mapping, Sequence

from contract.bench import BenchPhase, CacheEvidence
from contract.measurement import Finding
from contract.records import RequestRecord
from runner.bench.expectation import Expected

RATE_TOLERANCE = 0.05


def differing_lengths(records: Sequence[RequestRecord], expected: Mapping[str, Expected]) -> Finding | None:
    """Answers whose usage.prompt_tokens is not what the plan's text has by the engine's own tokenizer."""
    compared = [record for record in records if record.request_id in expected]
    differing = [
        record for record in compared if expected[record.request_id].prompt_tokens != record.prompt_tokens
    ]
    if not differing:
        return None
    first = differing[0]
    message = (
        f"{len(differing)} of {len(compared)} prompts have another length than planned; {first.request_id}: "
        f"{first.prompt_tokens} tokens, planned {expected[first.request_id].prompt_tokens}"
    )
    return Finding(code="PROMPT_LENGTH_DIFFERS", message=message)


def contamination(evidence: CacheEvidence) -> Finding | None:
    """More hits than an empty cache allows, by every ledger that tells: something was in it."""
    told = [tokens for tokens in (evidence.hit_tokens, evidence.cached_tokens) if tokens is not None]
    if not told or evidence.predicted_most is None or evidence.external_hit_tokens:
        return None
    more = min(told) - evidence.predicted_most
    if more <= 0:
        return None
    message = (
        f"{evidence.stage}: {more} tokens more were found than this bench had put into the cache; start from a clean "
        "one (--reset-cache, or a restart)"
    )
    return Finding(code="CONTAMINATED", message=message, tokens=more)


def not_measurable(evidence: CacheEvidence, *, caching: bool | None) -> Finding | None:
    """Counters that say nothing of what was answered. `caching`: whether the engine says that its prefix cache is on."""
    reason = evidence.unavailable.get("hit_tokens")
    if reason is None or caching is False or not evidence.prompt_tokens:
        return None
    return Finding(code="NOT_MEASURABLE", message=f"{evidence.stage}: {reason}")


def missing_reuse(evidence: CacheEvidence, *, caching: bool | None) -> Finding | None:
    """The warm phases filled the cache, and the measured one did not find it.

    `caching`: whether the engine says that its prefix cache is on; None: it does not say.
    """
    if not evidence.prompt_tokens or (evidence.hit_tokens is None and evidence.cached_tokens is None):
        return None
    counted = (evidence.hit_tokens or 0) + (evidence.external_hit_tokens or 0)
    found, expected = max(counted, evidence.cached_tokens or 0), evidence.predicted_least
    if found and (expected is None or found >= expected):
        return None
    if caching is False and not found:
        message = "none of what the warm phase sent was found again: the engine's prefix caching is off"
        return Finding(code="REUSE_MISSING", message=message)
    if expected:
        message = f"of {expected} tokens that should have been in the cache {found} were found"
        why = _why_missing(evidence, found, caching)
        return Finding(code="REUSE_MISSING", message=f"{message}; {why}", tokens=expected - found)
    message = "none of what the warm phase sent was found again: the measured phase ran on a cold cache"
    if expected == 0:
        message += ", as the block model expects"
    return Finding(code="REUSE_MISSING", message=message)


def _why_missing(evidence: CacheEvidence, found: int, caching: bool | None) -> str:
    """What the ledgers tell of the cause, and the causes that none of them refutes."""
    others = None if evidence.query_tokens is None else evidence.query_tokens - evidence.prompt_tokens
    if others is not None and others > 0:
        return (
            f"the counters show {others} prompt tokens more than were answered, so others used the engine too"
        )
    open_causes = []
    if not found and caching is None:
        open_causes.append("its prefix caching is off")
    if others is None:
        open_causes.append("others used the engine (no counter of its tells)")
    open_causes.append("its cache was emptied meanwhile, or holds less than it says")
    return f"no ledger shows why: {', or '.join(open_causes)}"


def missed_rate(phase: BenchPhase) -> Finding | None:
    """A fixed rate that was not kept."""
    rate, reached = phase.requested_rate, phase.reached_rate
    if rate is None or reached is None:
        return None
    if not phase.withdrawn and reached >= rate * (1 - RATE_TOLERANCE):
        return None
    message = (
        f"{rate:g} requests per second were asked for, {reached:.2f} reached: {phase.withdrawn} of {phase.planned} "
        f"requests were not sent in time, others began up to {phase.max_lag_seconds:.2f} s late (a user who waits for an "
        "answer sends nothing)"
    )
    return Finding(code="RATE_NOT_REACHED", message=message)
