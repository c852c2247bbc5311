"""What report.html says of a run with images, where that is not what it says of texts. No HTML here."""

from collections.abc import Mapping
from typing import Any

from analyzer.html_report.page import (
    Cell,
    Facts,
    ShownWarning,
    Table,
    Verdict,
    common_facts,
    known,
)
from analyzer.html_report.text import grouped, percent
from analyzer.ledgers import LEDGERS
from contract.manifest import Manifest
from contract.measurement import Measurement
from contract.warnings import WARNING_TEXTS, warning_message


def verdict(analysis: Mapping[str, Any]) -> Verdict:
    """One sentence, and what stands against it."""
    actual, agreement, expected = analysis["actual"], analysis["agreement"], analysis["expected"]
    details = [warning["message"] for warning in analysis["warnings"] if warning["code"].endswith("_DIFFER")]
    rate, hits = actual["global_hit_rate"], agreement["hit_tokens"]
    if analysis["status"] in ("interrupted", "failed"):
        return Verdict("bad", f"The run was not finished ({analysis['status']}).", details)
    if actual["failed_requests"]:
        return Verdict("bad", f"{grouped(actual['failed_requests'])} requests failed.", details)
    if rate is None:
        return Verdict("warn", f"No hit rate was measured: {actual['reason']}.", details)
    if expected["hit_tokens"] is None:
        return Verdict(
            "warn",
            f"The engine counted a hit rate of {percent(rate)}; what to expect is not known: "
            f"{expected['reason']}.",
            details,
        )
    if agreement["hits_equal"] and agreement["queries_equal"] is not False and not details:
        return Verdict(
            "good",
            f"Equal to the token: block arithmetic and the engine say {grouped(hits['theory'])} hit tokens "
            f"({percent(rate)}).",
            details,
        )
    return Verdict(
        "warn", f"The engine counted {percent(rate)}, {percent(expected['hit_rate'])} was expected.", details
    )


def ledger_table(analysis: Mapping[str, Any]) -> Table:
    """What was expected and the ledgers, in tokens."""
    expected, ledgers = analysis["expected"], analysis["ledgers"]
    reason = expected["reason"]
    rows = [
        [
            Cell("expected (block arithmetic)"),
            known(expected["hit_tokens"], grouped, reason),
            known(expected["input_tokens"], grouped, reason),
            known(expected["hit_rate"], percent, reason),
            Cell("probes of this run"),
        ]
    ]
    for kind in LEDGERS:
        if kind.origin == "model":
            continue
        total, read_from = ledgers[kind.name]["total"], ledgers[kind.name]["source"]
        good = (
            None
            if None in (total["hits"], expected["hit_tokens"])
            else total["hits"] == expected["hit_tokens"]
        )
        source = "; ".join(dict.fromkeys(value for value in read_from.values() if value))
        rows.append(
            [
                Cell(kind.title),
                Cell(None, total["reason"])
                if total["hits"] is None
                else Cell(grouped(total["hits"]), good=good),
                known(total["queries"], grouped, total["reason"]),
                known(total["hit_rate"], percent, total["reason"]),
                Cell(source),
            ]
        )
    return Table(
        "Ledgers: the same traffic, counted in several ways",
        ("ledger", "hit tokens", "input tokens", "hit rate", "read from"),
        rows,
    )


def shown_warnings(analysis: Mapping[str, Any]) -> list[ShownWarning]:
    return [
        ShownWarning(item["code"], warning_message(item), WARNING_TEXTS.get(item["code"]))
        for item in analysis["warnings"]
    ]


def group_table(analysis: Mapping[str, Any]) -> Table:
    """What one request is made of."""
    data, expected, tokens = analysis["data"], analysis["expected"], analysis["actual"]["image_tokens"]
    reason, image = expected["reason"], data["image"]
    cache = analysis["actual"]["multimodal_cache"]
    rows = [
        [
            Cell("images"),
            Cell(
                f"{data['images_per_request']} x the same {image['format']} of {image['width']}x{image['height']}, "
                f"{grouped(image['byte_length'])} bytes"
            ),
        ],
        [Cell("text tokens"), Cell(grouped(data["text_tokens"]))],
        [Cell("image tokens, answers"), known(tokens["per_request_max"], grouped, tokens["reason"])],
        [Cell("tokens in all"), known(expected["prompt_tokens_per_request"], grouped, reason)],
        [Cell("in front of the text"), known(expected["tokens_before_text"], grouped, reason)],
        [Cell("shared, in whole blocks"), known(expected["shared_tokens_per_request"], grouped, reason)],
        [Cell("requests that find nothing"), known(expected["requests_that_find_nothing"], grouped, reason)],
        [Cell("images sent"), Cell(grouped(cache["images_sent"]))],
        [Cell("multimodal cache, queries"), known(cache["queries"], grouped, cache["reason"])],
        [Cell("multimodal cache, hits"), known(cache["hits"], grouped, cache["reason"])],
    ]
    return Table("Requests and their images", ("part", "value"), rows, f"Multimodal cache: {cache['note']}.")


def rank_table(analysis: Mapping[str, Any]) -> Table:
    """Per rank: prefix cache in tokens, and the multimodal cache in images."""
    actual = analysis["actual"]
    rows = []
    for rank, counted in sorted(actual["by_dp"].items(), key=lambda item: int(item[0])):
        items = actual["multimodal_cache"]["by_dp"].get(rank, {})
        reason = actual["reason"] or actual["multimodal_cache"]["reason"]
        hits, expected = counted["hits"], counted["expected_hits"]
        rows.append(
            [
                Cell(f"rank {rank}"),
                known(counted["requests"], grouped, "its queries are not whole requests"),
                known(counted["queries"], grouped, reason),
                Cell(None, reason)
                if hits is None
                else Cell(grouped(hits), good=None if expected is None else hits == expected),
                known(
                    expected, grouped, analysis["expected"]["reason"] or "its queries are not whole requests"
                ),
                known(counted["hit_rate"], percent, reason),
                known(items.get("queries"), grouped, reason),
                known(items.get("hits"), grouped, reason),
                known(counted["kv_cache_usage_peak"], percent, counted.get("kv_cache_usage_reason")),
            ]
        )
    return Table(
        "Ranks: as the counters report it",
        (
            "rank",
            "requests",
            "queries, tokens",
            "hits, tokens",
            "hits, expected",
            "hit rate",
            "images asked for",
            "images found",
            "KV usage, peak",
        ),
        rows,
    )


def facts(
    analysis: Mapping[str, Any], manifest: Manifest, measurement: Measurement | None, stamp: str
) -> Facts:
    """What was measured with what."""
    image = analysis["data"]["image"]
    own: Facts = [
        ("images", Cell(f"{analysis['data']['scenario']}, SHA-256 {image['sha256'][:16]}")),
        ("from", Cell(f"{image['parquet_path']}, row {image['row_index']}, {image['image_column']}")),
    ]
    return [*common_facts(analysis, manifest, measurement, stamp), *own]
