"""Waiting, with a limit, until the engine's page shows what was just sent and answered."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from contract.errors import NotThisEngineError, ServiceError
from enginemetrics.movement import Movement, Verdict, movement
from runner.control import ControlClient, Scrape
from runner.settle import POLL_SECONDS

WAIT_SECONDS = 10.0
STILL_SECONDS = 2.0
"""How long lookups may lag behind the front end's counters before they are said not to be counted."""


@dataclass(frozen=True)
class Counted:
    """The first scrape that shows what was sent.

    `hits`: by rank; None: this engine tells none in tokens. `not_counting`: why its prefix-cache counters cannot be used.
    """

    scrape: Scrape
    hits: Mapping[int, int] | None
    not_counting: str | None = None


class OtherTrafficError(ServiceError):
    """The counters show more than what was sent."""


def wait_until_counted(
    client: ControlClient,
    before: Scrape,
    sent: int,
    rank: int | None,
    stop: threading.Event,
    *,
    looks_up: bool = True,
) -> Counted:
    """Wait until the counters have moved by `sent` tokens, on `rank` where one is given.

    `looks_up` False: prefix caching is off, so only the front end's counters move.

    Raises:
        NotThisEngineError: the page is not, or not alone, that of the engine that answered.
        OtherTrafficError: it shows more than that.
        ServiceError: other ranks, or counters that show something else.
    """
    begun = time.monotonic()
    witnessed: float | None = None
    while True:
        after = client.scrape()
        moved = movement(before.snapshot, after.snapshot, looks_up=looks_up)
        if moved.difference.findings:
            finding = moved.difference.findings[0]
            raise (NotThisEngineError if finding.code == NotThisEngineError.code else ServiceError)(
                finding.message
            )
        verdict, now = moved.verdict(sent, rank), time.monotonic()
        if verdict == "counted":
            return Counted(after, _hits(moved))
        if verdict in ("elsewhere", "more"):  # waiting mends neither
            kind = OtherTrafficError if verdict == "more" else ServiceError
            raise kind(_problem(verdict, moved, sent, rank))
        late = now - begun > WAIT_SECONDS
        if verdict == "not_counting":
            witnessed = witnessed or now
            if late or (moved.prompt_tokens and now - witnessed > STILL_SECONDS):
                return Counted(after, None, _not_counting(moved, sent))
        elif late and verdict == "missing":
            raise NotThisEngineError(_not_this_engine(client, moved, sent))
        elif late:
            raise ServiceError(_problem(verdict, moved, sent, rank))
        if stop.wait(POLL_SECONDS):
            raise ServiceError(
                f"stopped while the counters were waited for, {now - begun:.1f} s after {sent} tokens"
            )


def _hits(moved: Movement) -> dict[int, int] | None:
    if moved.lookups is None:
        return None
    hits = {rank.rank: rank.hits for rank in moved.difference.ranks}
    return {rank: count for rank, count in hits.items() if count is not None}


def _not_counting(moved: Movement, sent: int) -> str:
    if moved.prompt_tokens:
        return (
            f"the prefix-cache counters stand still: {sent} tokens were sent and vllm:prompt_tokens shows them, "
            "vllm:prefix_cache_queries shows none; this engine does not report its prefix cache there"
        )
    return (
        f"the prefix-cache counters stand at 0 after {sent} tokens were sent and answered; this engine does not report "
        "its prefix cache there, or the page is another engine's, which no other counter of it tells"
    )


def _not_this_engine(client: ControlClient, moved: Movement, sent: int) -> str:
    shown = sum((moved.lookups if moved.lookups is not None else moved.prompt_tokens or {}).values())
    return (
        f"{', '.join(client.engine.metrics_urls)}: shows {shown} of {sent} tokens that were sent and answered, so it is "
        f"not, or not alone, the page of the engines that answer at {client.engine.base_url}; name the page of every "
        "engine that answers, or send to one engine"
    )


def _problem(verdict: Verdict, moved: Movement, sent: int, rank: int | None) -> str:
    lookups = moved.lookups or {}
    shown = sum((lookups or moved.prompt_tokens or {}).values())
    if verdict == "elsewhere":
        return (
            f"the probe for rank {rank} was counted on rank {min(set(lookups) - {rank})} ({dict(lookups)}); the engine "
            "ignores X-data-parallel-rank, or its labels need service.engine_label_map"
        )
    if verdict == "more":
        return f"the counters show {shown} tokens where {sent} were sent: other traffic is there; stop it"
    does = "counts lookups again" if verdict == "counted_again" else "leaves lookups out"
    return (
        f"vllm:prefix_cache_queries shows {shown} tokens where {sent} were sent, vllm:prompt_tokens shows exactly those: "
        f"the engine {does}, so its prefix-cache counters cannot be used"
    )
