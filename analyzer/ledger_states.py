"""`validation.ledgers`: of each ledger whether it is equal, differs, or is absent, so that none drops out unsaid."""

from collections.abc import Mapping
from typing import Any

from analyzer.ledgers import NAMES, Ledger, Tokens
from analyzer.output_ledger import NAME as OUTPUT_TOKENS

THEORY = "theory"
QUANTITIES = {"hits": "hit_tokens", "queries": "input_tokens"}
"""Of `Tokens` -> as this document calls it."""


def ledger_states(
    ledgers: Mapping[str, Ledger], theory_tokens: int | None, planned_tokens: int | None
) -> dict[str, dict[str, Any]]:
    """Name -> `status` equal, differs or absent, and by how many tokens.

    The first ledger whose hits are known is compared with theory, the others with it (`against`). `hit_tokens` and
    `input_tokens` are signed differences, None where one side is not known; `by_dp` has the ranks that differ where they
    can be told apart. An absent ledger has a `reason`, and how many of the `answers` lack it where it is made of answers.
    """
    first = next((name for name in NAMES if ledgers[name].total.hits is not None), None)
    plan = Ledger(Tokens(theory_tokens, planned_tokens))
    states: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        ledger = ledgers[name]
        if ledger.total.hits is None or first is None:
            states[name] = {"status": "absent", "reason": ledger.total.reason, **ledger.answers_document()}
        elif name == first:
            states[name] = _compared(ledger, plan, THEORY)
        else:
            states[name] = _compared(ledger, ledgers[first], first)
    return states


def _compared(ledger: Ledger, reference: Ledger, name: str) -> dict[str, Any]:
    total = _difference(ledger.total, reference.total)
    ranks = {
        str(rank): {key: tokens for key, tokens in change.items() if tokens}
        for rank in sorted(ledger.ranks.keys() & reference.ranks.keys())
        if any((change := _difference(ledger.ranks[rank], reference.ranks[rank])).values())
    }
    status = "differs" if any(total.values()) or ranks else "equal"
    return {"status": status, "against": name, **total, "by_dp": ranks}


def _difference(tokens: Tokens, reference: Tokens) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for quantity, key in QUANTITIES.items():
        mine, other = getattr(tokens, quantity), getattr(reference, quantity)
        found[key] = None if mine is None or other is None else mine - other
    return found


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
