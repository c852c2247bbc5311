"""What a measurement that is over is called on dashboards and in the index."""

from collections.abc import Mapping
from typing import Any


def verdict_of(status: str | None, analysis: Mapping[str, Any] | None) -> str | None:
    """`interrupted`, `failed`, or the guide's PASS and PASS_WITH_WARNING; None: it goes on, or nobody has analysed it.

    `status` is the measurement's own. The guide's two are about hit rates alone: a load of which requests failed is no
    success, whatever the rates of the others are.
    """
    if status == "interrupted":
        return "interrupted"
    if status == "failed" or (analysis is not None and _failed_requests(analysis)):
        return "failed"
    return None if analysis is None else str(analysis["validation"]["status"])


def _failed_requests(analysis: Mapping[str, Any]) -> int:
    counts = analysis["results"] if "results" in analysis else analysis["actual"]  # a bench has results
    return counts.get("failed_requests") or 0
