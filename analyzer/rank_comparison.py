"""Counters against the plan, rank by rank, where the plan says which request goes to which rank (cold mode)."""

from collections.abc import Mapping
from typing import Any

from analyzer.ledgers import Ledger

Pair = tuple[int, int]
"""Input and hit tokens of a rank."""
NAMED = 4
"""Ranks that a message names; the rest it counts."""


def ranks_differ(theory: Mapping[str, Mapping[str, Any]], counters: Ledger) -> list[dict[str, Any]]:
    """The warning RANKS_DIFFER, where a rank counted other tokens than the plan has for it; empty where none did.

    `theory`: `theory.dp`, empty where the service chooses the ranks. Ranks whose tokens are not known are not compared.
    """
    planned = {int(rank): (part["input_tokens"], part["hit_tokens"]) for rank, part in theory.items()}
    counted: dict[int, Pair] = {
        rank: (tokens.queries, tokens.hits)
        for rank, tokens in counters.ranks.items()
        if rank in planned and tokens.queries is not None and tokens.hits is not None
    }
    differing = [rank for rank in sorted(counted) if counted[rank] != planned[rank]]
    if not differing:
        return []
    swapped = _swapped(differing, counted, planned)
    parts = [f"ranks {one} and {other} are swapped" for one, other in swapped]
    if swapped:
        parts.append("correct service.engine_label_map, or the addresses of the ranks")
    exchanged = {rank for pair in swapped for rank in pair}
    others = [rank for rank in differing if rank not in exchanged]
    parts += [_of_rank(rank, counted[rank], planned[rank]) for rank in others[:NAMED]]
    if len(others) > NAMED:
        parts.append(f"and {len(others) - NAMED} more ranks")
    return [{"code": "RANKS_DIFFER", "message": "counters against the plan: " + "; ".join(parts)}]


def _swapped(differing: list[int], counted: Mapping[int, Pair], planned: Mapping[int, Pair]) -> list[Pair]:
    """Pairs of ranks of which each counted exactly what the plan has for the other."""
    found: list[Pair] = []
    taken: set[int] = set()
    for one in differing:
        for other in differing:
            fits = counted[one] == planned[other] and counted[other] == planned[one]
            if one < other and fits and not {one, other} & taken:
                found.append((one, other))
                taken |= {one, other}
    return found


def _of_rank(rank: int, counted: Pair, planned: Pair) -> str:
    was = f"rank {rank} counted {counted[1]:,} hit tokens of {counted[0]:,}"
    return f"{was}, planned are {planned[1]:,} of {planned[0]:,}"
