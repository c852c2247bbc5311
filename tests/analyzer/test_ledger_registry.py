"""A further ledger is one entry: everything that shows or compares ledgers reads the registry."""

import pytest

from analyzer import document, ledger_states, ledgers, table
from analyzer.ledgers import LEDGERS, Ledger, LedgerKind, Tokens, Traffic, read_ledgers, unknown_ledger

RESERVED = {"theory", "planned", "agree", "differences", "explanations", "output_tokens"}
"""Keys that stand beside ledgers in documents."""
FURTHER = LedgerKind(
    name="further",
    title="a further ledger",
    row="Hit Rate by a Further Ledger",
    origin="page",
    queries_as="further",
    includes="what a test says",
    read=lambda _: Ledger(Tokens(7, 9)),
)


def test_names_are_unique_and_not_those_of_other_keys() -> None:
    for field in ("name", "title", "row", "queries_as"):
        given = [value for kind in LEDGERS if (value := getattr(kind, field)) is not None]
        assert len(given) == len(set(given))
        assert not set(given) & RESERVED
    assert LEDGERS[0].row is None, "the first one is the table's actual rate"
    assert all(kind.row is not None for kind in LEDGERS[1:])


def test_what_is_not_there_gives_no_ledger_but_its_reason() -> None:
    found = read_ledgers(Traffic("no page", "no answers", "no model"))
    assert list(found) == [kind.name for kind in LEDGERS]
    for kind in LEDGERS:
        assert found[kind.name].total == Tokens(reason=f"no {kind.origin}")


def test_a_further_ledger_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (*LEDGERS, FURTHER)
    for module in (ledgers, document, ledger_states, table):
        for name, value in (("LEDGERS", kinds), ("NAMES", tuple(kind.name for kind in kinds))):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    read = read_ledgers(Traffic("no page", "no answers", "no model"))
    found = {name: unknown_ledger("not there") for name in read} | {
        "counters": Ledger(Tokens(5, 9)),
        "further": read["further"],
    }
    (difference,) = ledgers.ledger_differences(found)
    assert (difference.first, difference.second, difference.tokens) == ("counters", "further", 2)
    assert ledger_states.ledger_states(found, 5, 9)["further"]["hit_tokens"] == 2
    agreed = document.agreement(5, 9, found)
    assert (agreed["hit_tokens"]["further"], agreed["query_tokens"]["further"]) == (7, 9)
    assert (agreed["hits_equal"], agreed["queries_equal"]) == (False, True)
    analysis = {
        "actual": {"global_hit_rate": 5 / 9, "unit": "tokens"},
        "requested_target_hit_rate": 0.5,
        "theoretical_hit_rate": 5 / 9,
        "theory_actual_difference_pp": 0.0,
        "target_difference_pp": 5.0,
        "theory": {"hit_tokens": 5},
        "ledgers": {name: ledger.document() for name, ledger in found.items()}
        | {
            "differences": [
                {"between": ["counters", "further"], "quantity": "hits", "tokens": 2, "by_dp": {}},
            ]
        },
    }
    assert dict(table.result_rows(analysis))["Hit Rate by a Further Ledger"].startswith(
        "77.78% (7 of 9 tokens"
    )
