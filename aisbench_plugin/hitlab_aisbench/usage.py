"""`usage` of an OpenAI-compatible answer, read as HitLab's own driver reads it."""

from typing import Any, NamedTuple

LARGEST_TOKENS = 2**31 - 1
"""Tokens of one request. What is more is no count."""


class Usage(NamedTuple):
    """Tokens of one answer; None where it does not report, or tells what is no count. `impossible`: what cannot be."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    image_tokens: int | None
    impossible: str | None


def read_usage(usage: dict[str, Any], most_output_tokens: int | None) -> Usage:
    """`most_output_tokens`: how many tokens the request allowed; None: not known."""
    details = usage.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    by_kind = details.get("multimodal_tokens")
    said = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": details.get("cached_tokens"),
        "image_tokens": by_kind.get("image") if isinstance(by_kind, dict) else None,
    }
    counts = {field: _count(value) for field, value in said.items()}
    problem = None
    for field, value in said.items():
        if isinstance(value, (int, float)) and value > LARGEST_TOKENS:
            problem = problem or f"usage says {value:.4g} {field}, more than any request has"
    written, prompt = counts["completion_tokens"], counts["prompt_tokens"]
    if written is not None and most_output_tokens is not None and written > most_output_tokens:
        problem = problem or f"usage says {written} completion_tokens, {most_output_tokens} were allowed"
        counts["completion_tokens"] = None
    for field in ("cached_tokens", "image_tokens"):
        part = counts[field]
        if part is not None and prompt is not None and part > prompt:
            problem = problem or f"usage says {part} {field} of {prompt} prompt_tokens"
            counts[field] = None
    return Usage(**counts, impossible=problem)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= LARGEST_TOKENS else None


def most_output_tokens(body: dict[str, Any]) -> int | None:
    """What a request with this body allows the engine to write; None: it sets no limit."""
    limits = [_count(body.get(name)) for name in ("max_tokens", "max_completion_tokens")]
    known = [limit for limit in limits if limit]
    return max(known) * (_count(body.get("n")) or 1) if known else None
