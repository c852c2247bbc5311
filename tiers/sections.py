"""Summaries for people: a title, sections, and a value per line."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 64

Section = tuple[str, Mapping[str, Any]]


def render(title: str, sections: Sequence[Section]) -> str:
    lines = [f" {title} ".center(WIDTH, "=")]
    for name, rows in sections:
        lines.append(f" {name} ".center(WIDTH, "-"))
        lines += [_line(f"{key}:", _value(value)) for key, value in rows.items()]
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def _line(label: str, value: str) -> str:
    if len(label) + 1 + len(value) <= WIDTH:
        return f"{label}{value:>{WIDTH - len(label)}}"
    return "\n".join(
        [label, *textwrap.wrap(value, WIDTH - 4, initial_indent="    ", subsequent_indent="    ")]
    )


def _value(value: Any) -> str:
    if value is None:
        return "n/a"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.2f}"
    return str(value)
