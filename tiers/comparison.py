"""This run against an earlier one, figure by figure."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from contract.errors import ScenarioError
from tiers.sections import render

FIGURES = {
    "l2": ("avg_throughput_mbps", "avg_ops_per_sec", "task_latency_p50_ms", "task_latency_p99_ms"),
    "server": ("p50", "p99", "gb_per_second"),
}
# What says who ran it where, or differs in every run by design: no reason against comparing.
INDIFFERENT = {
    "seed",
    "url",
    "rpc_url",
    "keep",
    "task_timeout",
    "deadline",
    "timeout",
    "end",
    "rounds",
    "duration",
}


@dataclass(frozen=True)
class Pair:
    """One figure in both runs. `ratio` is now over before."""

    where: str
    figure: str
    before: float
    now: float

    @property
    def ratio(self) -> float | None:
        return self.now / self.before if self.before else None


@dataclass(frozen=True)
class Comparison:
    pairs: tuple[Pair, ...]
    different: tuple[str, ...]
    """Settings, versions and host that differ: what the ratios may come from."""


def compare(now: dict[str, Any], before: dict[str, Any]) -> Comparison:
    """Raises ScenarioError where the earlier document is no result of the same bench."""
    kind = now["kind"]
    if before.get("kind") != kind:
        raise ScenarioError(
            f"--compare: not a result of bench {kind} (--format json --output FILE writes one)"
        )
    earlier = dict(_figures(before))
    pairs = [
        Pair(where, figure, earlier[where, figure], value)
        for (where, figure), value in _figures(now)
        if (where, figure) in earlier
    ]
    return Comparison(tuple(pairs), tuple(_different(now, before)))


def _figures(document: dict[str, Any]) -> Iterator[tuple[tuple[str, str], float]]:
    kind = document["kind"]
    places = (
        [
            (f"{cell['adapter']} {cell['data_size_kb']} KiB x{cell['in_flight']} {operation}", figures)
            for cell in document["cells"]
            for operation, figures in cell["operations"].items()
        ]
        if kind == "l2"
        else list(document["operations"].items())
    )
    for where, figures in places:
        for figure in FIGURES[kind]:
            if figures.get(figure):  # a lookup's throughput is 0 by definition
                yield (where, figure), float(figures[figure])


def _different(now: dict[str, Any], before: dict[str, Any]) -> Iterator[str]:
    for section in ("config", "versions", "host"):
        # As it would be read from a file: tuples are lists there.
        mine: dict[str, Any] = json.loads(json.dumps(now.get(section) or {}))
        theirs = before.get(section) or {}
        for key in sorted({*mine, *theirs} - INDIFFERENT):
            if mine.get(key) != theirs.get(key):
                yield f"{section}.{key}: {theirs.get(key)} before, {mine.get(key)} now"


def as_document(comparison: Comparison) -> dict[str, Any]:
    return {
        "figures": [
            {
                "where": pair.where,
                "figure": pair.figure,
                "before": pair.before,
                "now": pair.now,
                "ratio": pair.ratio,
            }
            for pair in comparison.pairs
        ],
        "different": list(comparison.different),
    }


def summary(comparison: Comparison) -> str:
    rows = {
        f"{pair.where} {pair.figure}": f"{pair.before:.3f} -> {pair.now:.3f}"
        + ("" if pair.ratio is None else f" (x{pair.ratio:.2f})")
        for pair in comparison.pairs
    }
    sections = [("Figures, before -> now", rows or {"Figures": "none in common"})]
    if comparison.different:
        sections.append(
            (
                "What Differs",
                {f"Difference {number}": text for number, text in enumerate(comparison.different, 1)},
            )
        )
    return render("Comparison", sections)
