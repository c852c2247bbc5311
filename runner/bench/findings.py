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
    """More hits than an empty cache allows: something was in it."""
    hits = evidence.hit_tokens if evidence.hit_tokens is not None else evidence.cached_tokens
    if hits is None or evidence.predicted_most is None or evidence.external_hit_tokens:
        return None
    more = hits - evidence.predicted_most
    if more <= 0:
        return None
    message = (
        f"{evidence.stage}: {more} tokens more were found than this bench had put into the cache; start from a clean "
        "one (--reset-cache, or a restart)"
    )
    return Finding(code="CONTAMINATED", message=message, tokens=more)


def missing_reuse(evidence: CacheEvidence) -> Finding | None:
    """The warm phases filled the cache, and the measured one did not find it."""
    if not evidence.prompt_tokens or (evidence.hit_tokens is None and evidence.cached_tokens is None):
        return None
    counted = (evidence.hit_tokens or 0) + (evidence.external_hit_tokens or 0)
    found, expected = max(counted, evidence.cached_tokens or 0), evidence.predicted_least
    if expected is not None and found < expected:
        message = (
            f"of {expected} tokens that should have been in the cache {found} were found; is prefix caching on, and is "
            "nobody else using the engine?"
        )
        return Finding(code="REUSE_MISSING", message=message, tokens=expected - found)
    if found == 0:
        message = (
            "nothing of what the warm phase sent was found again: the measured phase ran on a cold cache"
        )
        if expected == 0:
            message += ", as the block model expects of a cache of this size"
        return Finding(code="REUSE_MISSING", message=message)
    return None


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
