"""What the counters of a page show of tokens that were just sent and answered. Decisions only; no waiting here.

Two counters see every prompt: the lookups (`vllm:prefix_cache_queries`) and the front end's `vllm:prompt_tokens`. That
both are asked is what tells a page of another engine (neither moves) from an engine that does not count its lookups (one
moves), and other traffic (both show more) from lookups that are counted twice (one shows more).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from enginemetrics.difference import EngineDifference, subtract
from enginemetrics.snapshot import EngineSnapshot

Verdict = Literal[
    "counted",  # exactly what was sent, where it was sent
    "not_counting",  # lookups stand still; the page is this engine's, or nothing speaks against it
    "elsewhere",  # exactly what was sent, on other ranks
    "missing",  # less than what was sent: not, or not alone, the page of the engine that answered
    "left_out",  # lookups show a part, the front end all
    "more",  # more than what was sent: other traffic
    "counted_again",  # lookups show more, the front end exactly what was sent
]


@dataclass(frozen=True, slots=True)
class Movement:
    """Tokens by rank, ranks that did not move left out. `prompt_tokens` None: the page has no such counter.

    `lookups` None: this engine counts blocks, or looks nothing up, so no number of tokens can be asked of them.
    `at_zero`: no lookup has ever been counted on this page.
    """

    difference: EngineDifference
    lookups: Mapping[int, int] | None
    prompt_tokens: Mapping[int, int] | None
    at_zero: bool

    def verdict(self, sent: int, rank: int | None) -> Verdict:
        """Judge `sent` tokens; `rank` None: whichever rank the engine chose."""
        witness = self.prompt_tokens
        if self.lookups is None:
            return "counted" if witness is None else _verdict(witness, sent, rank)
        found = _verdict(self.lookups, sent, rank)
        if found in ("counted", "elsewhere"):
            return found
        seen = None if witness is None else _verdict(witness, sent, None)
        if found == "more":
            return "counted_again" if seen == "counted" else "more"
        if seen == "counted":
            return "left_out" if self.lookups else "not_counting"
        if seen is None and not self.lookups and self.at_zero:
            return "not_counting"
        return "more" if seen == "more" else "missing"


def movement(before: EngineSnapshot, after: EngineSnapshot, *, looks_up: bool = True) -> Movement:
    """What moved between two pages. `looks_up` False: the engine's prefix caching is off."""
    difference = subtract(before, after)
    witnesses = {rank.rank: rank.prompt_tokens for rank in difference.ranks}
    known = {rank: tokens for rank, tokens in witnesses.items() if tokens is not None}
    return Movement(
        difference,
        {rank.rank: rank.queries for rank in difference.ranks if rank.queries}
        if looks_up and difference.unit == "tokens"
        else None,
        {rank: tokens for rank, tokens in known.items() if tokens} if len(known) == len(witnesses) else None,
        not any(rank.queries for rank in after.ranks),
    )


def _verdict(moved: Mapping[int, int], sent: int, rank: int | None) -> Verdict:
    total = sum(moved.values())
    if total == sent:
        return "counted" if rank is None or moved == {rank: sent} else "elsewhere"
    return "more" if total > sent else "missing"
