"""The result of a run with images as people read it."""

from typing import Any

NOT_KNOWN = "N/A"


def image_result_rows(analysis: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each row; a value that is not known is N/A."""
    actual, data, expected = analysis["actual"], analysis["data"], analysis["expected"]
    tokens, cache = actual["image_tokens"], actual["multimodal_cache"]
    per_request = [tokens["per_request_min"], tokens["per_request_max"]]
    shown = " to ".join(dict.fromkeys(f"{value:,}" for value in per_request if value is not None))
    images = data["images_per_request"]
    items = NOT_KNOWN
    if cache["hit_rate"] is not None:
        items = f"{cache['hit_rate']:.2%} ({cache['hits']:,} of {cache['queries']:,} images)"
    return [
        ("Images per Request", f"{images} x {data['image']['width']}x{data['image']['height']} (the same)"),
        ("Image Tokens per Request", shown or NOT_KNOWN),
        ("Expected Prefix Cache Hit Rate", _rate(expected["hit_rate"], expected["hit_tokens"])),
        ("Actual Prefix Cache Hit Rate", _rate(actual["global_hit_rate"], actual["global_hits"])),
        ("Expected vs Actual Difference", _points(analysis["theory_actual_difference_pp"])),
        ("Multimodal Cache Hit Rate", items),
    ]


def _rate(rate: float | None, tokens: int | None) -> str:
    if rate is None:
        return NOT_KNOWN
    return f"{rate:.2%}" if tokens is None else f"{rate:.2%} ({tokens:,} tokens)"


def _points(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:.2f}%"
