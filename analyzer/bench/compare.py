"""Two benches of the same prompts, paired: what changed, by how much, and how sure that is."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from contract.documents import read_document
from contract.errors import ArtifactError

RESAMPLES, FEWEST_RESAMPLES = 10_000, 1_000
DRAWS = 4_000_000
"""Most pairs drawn in all: the mean of very many is sure with fewer resamples."""
CONFIDENCE = 0.95
SEED = 42
Direction = Literal["less", "more"] | None
QUALITY: dict[str, Direction] = {"f1": "more", "ttft": "less", "num_output_tokens": None}
SPEEDS: dict[str, Direction] = {
    "ttft_ms": "less",
    "request_latency_ms": "less",
    "tpot_ms": "less",
    "cached_tokens": None,
}
"""Metric -> what is better; None: neither is, by itself. Times, not rates: the mean of rates is no speed."""
TEXT_SHOWN = 60
SHA256_DIGITS = 64

Document = dict[str, Any]


def compare_files(first: Path, second: Path) -> Document:
    """The comparison of two results files, second minus first.

    Raises:
        ArtifactError: a file is not a result of a bench, or the two cannot be compared; says in what they differ.
    """
    one, other = _read(first), _read(second)
    if one["kind"] != other["kind"]:
        raise ArtifactError(
            f"{first} and {second}: one is about answers, the other about speed; compare like with like"
        )
    reasons = _differences(one, other)
    if reasons:
        raise ArtifactError(f"{first} and {second} cannot be compared: {'; '.join(reasons)}")
    metrics = QUALITY if one["kind"] == "quality" else SPEEDS
    pairs = [(one["rows"][name], other["rows"][name]) for name in one["rows"] if name in other["rows"]]
    document: Document = {
        "kind": one["kind"],
        "first": str(first),
        "second": str(second),
        "fingerprint": one["fingerprint"],
        "warmup_policy": one["warmup_policy"],
        "paired": len(pairs),
        "only_in_first": len(one["rows"].keys() - other["rows"].keys()),
        "only_in_second": len(other["rows"].keys() - one["rows"].keys()),
        "metrics": {name: _paired(name, better, pairs) for name, better in metrics.items()},
    }
    if one["kind"] == "quality":
        document["parse_rate"] = [_parse_rate(side) for side in (one, other)]
        document["changed_answers"] = _changed(one["rows"], other["rows"])
    return document


def _read(path: Path) -> Document:
    document = read_document(path, "results file of a bench")
    quality = "per_sample" in document
    rows = document.get("per_sample" if quality else "requests")
    fingerprint = document.get("run_fingerprint" if quality else "fingerprint")
    if not isinstance(rows, list) or not fingerprint:
        raise ArtifactError(
            f"{path}: is neither bench_summary.json nor a results file of rag-qa-quality as this version writes them"
        )
    name = "sample_id" if quality else "request_id"
    return {
        "kind": "quality" if quality else "speed",
        "fingerprint": fingerprint,
        "parts": document.get("fingerprint_parts") or {},
        "warmup_policy": document.get("warmup_policy") if quality else document["config"]["warmup_policy"],
        "status": document.get("status"),
        "rows": {row[name]: row for row in rows},
    }


def _differences(one: Document, other: Document) -> list[str]:
    found: list[str] = []
    if one["fingerprint"] != other["fingerprint"]:
        names = sorted(one["parts"].keys() | other["parts"].keys())
        differing = [
            _named(name, one["parts"].get(name), other["parts"].get(name))
            for name in names
            if one["parts"].get(name) != other["parts"].get(name)
        ]
        found += differing or [f"fingerprints {one['fingerprint']} and {other['fingerprint']}"]
    if one["warmup_policy"] != other["warmup_policy"]:
        first, second = (side["warmup_policy"] or "none" for side in (one, other))
        found.append(f"warmup policy {first} and {second}")
    return found


def _named(name: str, first: Any, second: Any) -> str:
    """Both values; of digests, which tell a reader nothing, only that they differ."""
    if any(isinstance(value, str) and len(value) == SHA256_DIGITS for value in (first, second)):
        return f"{name} differ"
    shown = ("none" if value is None else repr(value) for value in (first, second))
    return f"{name} {' and '.join(shown)}"


def _paired(name: str, better: Direction, pairs: Sequence[tuple[Document, Document]]) -> Document | None:
    """Means and the mean difference over the pairs in which both sides have the number; None without any.

    Counts the pairs in which the second is better, worse and equal; higher, lower and equal where neither is better.
    """
    both = [
        (float(a[name]), float(b[name]))
        for a, b in pairs
        if a.get(name) is not None and b.get(name) is not None
    ]
    if not both:
        return None
    values = np.array(both)
    differences = values[:, 1] - values[:, 0]
    low, high = bootstrap_interval(differences)
    return {
        "n": len(both),
        "first_mean": float(values[:, 0].mean()),
        "second_mean": float(values[:, 1].mean()),
        "mean_difference": float(differences.mean()),
        "interval": [low, high],
        "confidence": CONFIDENCE,
        "better_is": better,
        **_counted(differences, better),
    }


def _counted(differences: "np.ndarray[Any, np.dtype[np.float64]]", better: Direction) -> dict[str, int]:
    higher, lower = int((differences > 0).sum()), int((differences < 0).sum())
    equal = len(differences) - higher - lower
    if better is None:
        return {"higher": higher, "lower": lower, "equal": equal}
    return {
        "better": higher if better == "more" else lower,
        "worse": lower if better == "more" else higher,
        "equal": equal,
    }


def bootstrap_interval(differences: "np.ndarray[Any, np.dtype[np.float64]]") -> tuple[float, float]:
    """Percentile bootstrap of the mean: resampled pairs, a fixed seed, so that it comes out the same again."""
    rng = random.Random(SEED)
    count = len(differences)
    resamples = max(FEWEST_RESAMPLES, min(RESAMPLES, DRAWS // count))
    means = np.empty(resamples)
    for number in range(resamples):
        # Bytes of the generator, not numpy's draws, whose streams change between versions. The modulo's bias is
        # below 2^-32 times the number of pairs.
        drawn = np.frombuffer(rng.randbytes(4 * count), dtype="<u4") % count
        means[number] = differences[drawn].mean()
    edge = (1 - CONFIDENCE) / 2 * 100
    return float(np.percentile(means, edge)), float(np.percentile(means, 100 - edge))


def _parse_rate(side: Document) -> float | None:
    rows = side["rows"].values()
    return sum(bool(row["parsed"]) for row in rows) / len(rows) if rows else None


def _changed(one: Mapping[str, Document], other: Mapping[str, Document]) -> list[Document]:
    return [
        {
            "sample_id": name,
            "first": _answer(one[name]),
            "second": _answer(other[name]),
            "first_f1": one[name]["f1"],
            "second_f1": other[name]["f1"],
        }
        for name in one
        if name in other and _answer(one[name]) != _answer(other[name])
    ]


def _answer(row: Document) -> str | None:
    """None where none was parsed, which is not an empty one."""
    return row["answer"] if row["parsed"] else None


def comparison_text(comparison: Document) -> str:
    """A table, and the answers that changed."""
    lines = [
        f"first:  {comparison['first']}",
        f"second: {comparison['second']}",
        (
            f"fingerprint {comparison['fingerprint']}, warm phases {comparison['warmup_policy']}, "
            f"{comparison['paired']} paired, {comparison['only_in_first']} and {comparison['only_in_second']} unpaired"
        ),
        "",
        f"{'':<20}{'n':>6}{'first':>12}{'second':>12}{'difference':>12}  {CONFIDENCE:.0%} interval, pairs",
    ]
    for name, found in comparison["metrics"].items():
        if found is None:
            lines.append(f"{name:<20}{'not measured on both sides':>42}")
            continue
        low, high = found["interval"]
        lines.append(
            f"{name:<20}{found['n']:>6}{found['first_mean']:>12.4f}{found['second_mean']:>12.4f}"
            f"{found['mean_difference']:>+12.4f}  {low:+.4f} to {high:+.4f}, {_shown_counts(found)}"
        )
    if "changed_answers" in comparison:
        rates = ["-" if rate is None else f"{rate:.2%}" for rate in comparison["parse_rate"]]
        lines += [
            "",
            f"parse rate {rates[0]} and {rates[1]}",
            f"answers changed: {len(comparison['changed_answers'])}",
        ]
        for change in comparison["changed_answers"]:
            lines.append(
                f"  {change['sample_id']}: {_short(change['first'])} -> {_short(change['second'])} "
                f"(F1 {_score(change['first_f1'])} -> {_score(change['second_f1'])})"
            )
    return "\n".join(lines)


def _shown_counts(found: Document) -> str:
    words = ("higher", "lower") if found["better_is"] is None else ("better", "worse")
    return ", ".join(f"{found[word]} {word}" for word in (*words, "equal"))


def _short(text: str | None) -> str:
    return (
        "no answer"
        if text is None
        else repr(text if len(text) <= TEXT_SHOWN else text[: TEXT_SHOWN - 1] + "…")
    )


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
