"""What others send, turned into ours: the one place where numbers, names and documents of an engine get their bounds.

An engine, a gateway or a file may say anything: a count of 2^63, a version of 5,000 digits, an object where a name
belongs, a document nested a million deep. What is outside the bounds is not taken for less than it is: it is None (not
told), and who reads it says so. The bounds are far above what any engine counts, and such that sums of what is inside
them stay inside 64 bits.
"""

import math
from typing import Any, Final

import orjson

LARGEST_TOKENS: Final = 2**31 - 1
"""Tokens of one request, answer, block or model length; also the largest token id. A hundred million of them add up to
less than 2^63."""
LARGEST_COUNT: Final = 2**53
"""One counter of a metrics page: up to here doubles are exact, and a thousand ranks of it stay below 2^63."""
LONGEST_NAME: Final = 1000
"""Characters of a name, a version, a label."""
LARGEST_BODY: Final = 64 * 2**20
"""Bytes of one answer that is read as a whole: a metrics page, a model list, an answer that does not stream."""
DEEPEST: Final = 64
"""Levels of a JSON document."""


class ForeignDocumentError(ValueError):
    """A document that cannot be read. One line, without what it holds."""


def whole_number(value: Any, most: int = LARGEST_COUNT) -> int | None:
    """A JSON integer of 0 to `most`; None for all else (true and 3.0 are no integers)."""
    return value if type(value) is int and 0 <= value <= most else None


def token_count(value: Any) -> int | None:
    """How many tokens, as JSON says it; None when that is no count, or none that can be."""
    return whole_number(value, LARGEST_TOKENS)


def token_ids(value: Any) -> list[int] | None:
    """A list of token ids; None when one of them is none."""
    if not isinstance(value, list):
        return None
    known = [item for item in value if type(item) is int and 0 <= item <= LARGEST_TOKENS]
    return known if len(known) == len(value) else None


def counted(value: float) -> int | None:
    """A counter's value in a metrics page as a whole number; None when it is none, or above `LARGEST_COUNT`.

    `value` may be an int of any size: the Prometheus parser makes them of long rows of digits.
    """
    if not 0 <= value <= LARGEST_COUNT or value != int(value):  # NaN is in no range
        return None
    return int(value)


def finite(value: float) -> float | None:
    """A gauge's value; None when it is no number that can be calculated with."""
    if not -LARGEST_COUNT <= value <= LARGEST_COUNT:
        return None
    return float(value)


def decimal_number(text: str | None, most: int = LARGEST_COUNT) -> int | None:
    """A whole number that is written out in a label or a version, 0 to `most`; None for anything else.

    ASCII digits alone: `int` would take those of every script, underscores, signs and blanks.
    """
    if text is None or not (text.isascii() and text.isdecimal()) or len(text.lstrip("0")) > len(str(most)):
        return None
    number = int(text.lstrip("0") or "0")
    return number if number <= most else None


def name(value: Any) -> str | None:
    """A name or a version; None when it is no text, empty, or longer than `LONGEST_NAME`."""
    return value if isinstance(value, str) and 0 < len(value) <= LONGEST_NAME else None


def shown(value: float) -> str:
    """A number as a message may show it, whatever its length."""
    try:
        return f"{value:.6g}" if isinstance(value, float) or abs(value) > LARGEST_COUNT else str(value)
    except OverflowError:
        return f"a number of more than {math.floor(math.log10(2) * value.bit_length())} digits"  # type: ignore[attr-defined]


def json_document(content: bytes | bytearray) -> Any:
    """The value of a JSON text in UTF-8.

    Raises:
        ForeignDocumentError: it is none, holds a number without end or half a character (a lone surrogate), or is nested
            more than `DEEPEST` levels.
    """
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ForeignDocumentError(f"not JSON ({error})") from error
    level, depth = [value], 0
    while level := [inner for item in level for inner in _inside(item)]:
        depth += 1
        if depth > DEEPEST:
            raise ForeignDocumentError(f"JSON nested more than {DEEPEST} levels deep")
    return value


def _inside(value: Any) -> Any:
    """What a value holds that may hold something itself."""
    if isinstance(value, dict):
        return [item for item in value.values() if isinstance(item, dict | list)]
    if isinstance(value, list):
        return [item for item in value if isinstance(item, dict | list)]
    return ()
