"""Whatever text comes in, what goes out prints and does nothing else."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.foreign_text import presentable, printable_json, visible

# Characters that do something to a terminal or a reader, among ordinary ones.
HOSTILE = st.text(
    st.one_of(
        st.sampled_from(
            "\x00\x07\x08\x1b\x7f\x85\x9b\r\n\t\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff"
        ),
        st.characters(),
        st.sampled_from("ab ]0;[31m"),
    )
)


def harmless(character: str) -> bool:
    """By the Unicode category alone: no control, no format character, no surrogate, nothing unassigned or private."""
    return unicodedata.category(character)[0] != "C" and unicodedata.category(character) not in ("Zl", "Zp")


@given(HOSTILE)
def test_one_line_that_prints(text: str) -> None:
    line = presentable(text, 80)
    assert all(map(harmless, line))
    assert len(line) <= 80
    assert "  " not in line


@given(HOSTILE)
def test_lines_stay_and_nothing_else_that_does_not_print(text: str) -> None:
    shown = visible(text)
    assert all(harmless(character) for character in shown if character not in "\n\t")
    assert shown.count("\n") == text.count("\n")
    assert visible(shown) == shown


@given(
    st.recursive(
        HOSTILE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HOSTILE, inner, max_size=3)
    )
)
def test_json_stays_the_same_document(document: object) -> None:
    text = printable_json(json.dumps(document, ensure_ascii=False, indent=2))
    assert json.loads(text) == document
    assert all(harmless(character) for character in text if character != "\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\r\nlines\tand a tab", "two lines and a tab"),
        ("\x1b]0;owned\x07\x1b[2J", r"\x1b]0;owned\x07\x1b[2J"),
        ("abc\u202etxt.exe", r"abc\u202etxt.exe"),
        ("\ud800", r"\ud800"),
        ("größe 模型 ✓", "größe 模型 ✓"),
        ("wide\u3000blank", "wide blank"),
        ("x" * 400, "x" * 299 + "…"),
    ],
)
def test_how_it_looks(text: str, shown: str) -> None:
    assert presentable(text) == shown
