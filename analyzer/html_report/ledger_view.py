"""The verdict of a run against its theory and ledgers, in words and a table. No HTML here."""

from collections.abc import Mapping, Sequence
from typing import Any

from analyzer.html_report.page import Cell, Table, Verdict, known
from analyzer.html_report.text import grouped, percent
from analyzer.ledgers import TITLES


def verdict(analysis: Mapping[str, Any]) -> Verdict:
    """One sentence, and what stands against it."""
    actual, agreement = analysis["actual"], analysis["agreement"]
    rate = actual["global_hit_rate"]
    details = [
        f"{_sentence(' against '.join(TITLES[name] for name in reversed(difference['between'])))[:-1]}: "
        f"{difference['tokens']:+,} "
        f"{'hit' if difference['quantity'] == 'hits' else 'input'} tokens. {_sentence(difference['cause'])}"
        + (f" ({difference['caveat']})" if difference["caveat"] else "")
        for difference in analysis["ledgers"]["differences"]
    ]
    details += [
        f"Prediction against theory: {item['tokens']:+,} hit tokens in {grouped(item['requests'])} requests. "
        f"{_sentence(item['cause'])}"
        for item in analysis["prediction"].get("theory", {}).get("causes", ())
    ]
    if analysis["status"] in ("interrupted", "failed"):
        return Verdict("bad", f"The run was not finished ({analysis['status']}).", details)
    if actual.get("failed_requests"):
        return Verdict(
            "bad",
            f"{grouped(actual['failed_requests'])} of {grouped(actual['client']['requests'])} requests failed; the "
            f"theory of {grouped(actual['void_requests'])} requests is void.",
            details,
        )
    if rate is None:
        return Verdict("warn", f"No hit rate was measured: {actual['reason']}.", details)
    hits = agreement["hit_tokens"]
    ledgers = [name for name in hits if name not in ("theory", "prediction") and hits[name] is not None]
    compared = "theory, prediction" if hits["prediction"] is not None else "theory"
    if agreement["hits_equal"] and agreement["queries_equal"] is not False:
        return Verdict(
            "good",
            f"Equal to the token: {compared} and {len(ledgers)} "
            f"{'ledgers' if len(ledgers) > 1 else 'ledger'} of the engine say {grouped(hits['theory'])} hit tokens "
            f"({percent(rate)}).",
            details,
        )
    if agreement["hits_equal"] is None:
        return Verdict(
            "warn",
            f"The engine counted a hit rate of {percent(rate)}; there is nothing to compare it with.",
            details,
        )
    return Verdict("warn", _how_they_differ(hits, ledgers), details)


def _how_they_differ(hits: Mapping[str, int | None], ledgers: Sequence[str]) -> str:
    theory = hits["theory"] or 0
    measured = [hits[name] or 0 for name in ledgers]
    if measured and measured[0] != theory:
        more = "more" if measured[0] > theory else "fewer"
        predicted = ", exactly as the block-exact model predicts" if hits["prediction"] == measured[0] else ""
        return (
            f"{grouped(abs(measured[0] - theory))} hit tokens {more} than theory: {grouped(measured[0])} instead of "
            f"{grouped(theory)}{predicted}."
        )
    if len(set(measured)) > 1:
        return "The ledgers of the engine do not agree on the hit tokens."
    if hits["prediction"] not in (None, theory):
        return "Actual is equal to theory to the token, but the block-exact model predicts something else."
    return "Hit tokens are equal, but the ledgers do not agree on the input tokens."


def ledger_table(analysis: Mapping[str, Any]) -> Table:
    """Theory and the ledgers, in tokens."""
    theory, ledgers = analysis["theory"], analysis["ledgers"]
    rows = [
        [
            Cell("theory (watermark model)"),
            Cell(grouped(theory["hit_tokens"])),
            Cell(grouped(theory["input_tokens"])),
            known(analysis["theoretical_hit_rate"], percent),
            Cell(""),
            Cell("the plan"),
        ]
    ]
    for name, title in TITLES.items():
        total = ledgers[name]["total"]
        hits = total["hits"]
        ahead = (
            Cell(None, "")
            if hits is None
            else Cell(
                f"{hits - theory['hit_tokens']:+,}" if hits != theory["hit_tokens"] else "0",
                good=hits == theory["hit_tokens"],
            )
        )
        source = "; ".join(dict.fromkeys(value for value in ledgers[name]["source"].values() if value))
        rows.append(
            [
                Cell(title),
                known(hits, grouped, total["reason"]),
                known(total["queries"], grouped, total["reason"] if hits is not None else ""),
                known(total["hit_rate"], percent, ""),
                ahead,
                Cell(source),
            ]
        )
    return Table(
        "Ledgers: the same traffic, counted in several ways",
        ("ledger", "hit tokens", "input tokens", "hit rate", "hits against theory", "read from"),
        rows,
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
