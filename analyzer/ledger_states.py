"""`validation.ledgers`: of each ledger whether it is equal, differs, or is absent, so that none drops out unsaid."""

from collections.abc import Mapping
from typing import Any

from analyzer.ledgers import NAMES, Ledger, ledger_differences
from analyzer.output_ledger import NAME as OUTPUT_TOKENS

THEORY = "theory"
QUANTITIES = {"hits": "hit_tokens", "queries": "input_tokens"}
"""Of a `LedgerDifference` -> as this document calls it."""


def ledger_states(
    ledgers: Mapping[str, Ledger], theory_tokens: int | None, planned_tokens: int | None
) -> dict[str, dict[str, Any]]:
    """Name -> `status` equal, differs or absent, and by how many tokens.

    The first ledger whose hits are known is compared with theory, the others with it (`against`). `hit_tokens` and
    `input_tokens` are signed differences, None where one side is not known; `by_dp` has the ranks that differ where they
    can be told apart. An absent ledger has a `reason`, and how many of the `answers` lack it where it is made of answers.
    """
    first = next((name for name in NAMES if ledgers[name].total.hits is not None), None)
    found = {
        (item.second, item.quantity): item for item in ledger_differences(ledgers) if item.first == first
    }
    states: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        ledger = ledgers[name]
        if ledger.total.hits is None:
            states[name] = {"status": "absent", "reason": ledger.total.reason, **ledger.answers_document()}
            continue
        if name == first:
            reference, hits, queries = THEORY, theory_tokens, planned_tokens
        else:
            total = ledgers[str(first)].total
            reference, hits, queries = str(first), total.hits, total.queries
        ranks: dict[str, dict[str, int]] = {}
        for quantity, key in QUANTITIES.items():
            difference = found.get((name, quantity))
            for rank, tokens in difference.by_dp.items() if difference else ():
                ranks.setdefault(str(rank), {})[key] = tokens
        change = {
            "hit_tokens": None if hits is None else ledger.total.hits - hits,
            "input_tokens": None
            if queries is None or ledger.total.queries is None
            else ledger.total.queries - queries,
        }
        states[name] = {
            "status": "differs" if any(change.values()) or ranks else "equal",
            "against": reference,
            **change,
            "by_dp": ranks,
        }
    return states


def ledger_line(states: Mapping[str, Mapping[str, Any]]) -> str:
    """All of them in one line, for stderr and the report."""
    return "Ledgers: " + ", ".join(f"{name} {_said(state)}" for name, state in states.items())


def _said(state: Mapping[str, Any]) -> str:
    if state["status"] == "absent":
        if state.get("answers_without"):
            return f"absent ({state['answers_without']:,} of {state['answers']:,} answers have none)"
        return "absent"
    if state["status"] == "equal":
        return "equal"
    parts = _changes(state) or [
        f"rank {rank} {change}" for rank, changes in state["by_dp"].items() for change in _changes(changes)
    ]
    return f"differs ({', '.join(parts)} against {state['against']})"


def _changes(change: Mapping[str, Any]) -> list[str]:
    keys = (*QUANTITIES.values(), OUTPUT_TOKENS)
    return [f"{change[key]:+,} {key.replace('_', ' ')}" for key in keys if change.get(key)]


def incomplete_ledgers(states: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A warning for each ledger that is absent because some answers, and not all, lack it: those are not as the rest."""
    return [
        {
            "code": "LEDGER_INCOMPLETE",
            "message": f"{name}: {state['reason']}; the other answers are not checked by it either",
        }
        for name, state in states.items()
        if state["status"] == "absent" and 0 < (state.get("answers_without") or 0) < state["answers"]
    ]
