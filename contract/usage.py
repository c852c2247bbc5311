"""`usage` of an OpenAI-compatible answer: the tokens that it says it has read, found in the cache and written."""

from typing import Any, NamedTuple

from contract.foreign import LARGEST_TOKENS, token_count


class Usage(NamedTuple):
    """Tokens of one answer; None where it does not report, or tells what is no count.

    Attributes:
        cached_tokens: those of `prompt_tokens` that were found in the cache.
        image_tokens: those of `prompt_tokens` that stand for images.
        impossible: what it says that cannot be, in one line; the count concerned is None.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    image_tokens: int | None = None
    impossible: str | None = None


NOTHING_TOLD = Usage()


def read_usage(usage: Any, most_output_tokens: int | None = None) -> Usage:
    """`usage` of an answer, whatever stands there.

    Args:
        most_output_tokens: how many tokens the request allowed; None: not known.
    """
    if not isinstance(usage, dict):
        return NOTHING_TOLD
    details = usage.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    by_kind = details.get("multimodal_tokens")
    said = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": details.get("cached_tokens"),
        "image_tokens": by_kind.get("image") if isinstance(by_kind, dict) else None,
    }
    counts = {field: token_count(value) for field, value in said.items()}
    problem = None
    for field, value in said.items():
        if isinstance(value, int | float) and value > LARGEST_TOKENS:
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
