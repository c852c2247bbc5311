"""Answers found in texts, and their F1. Worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.bench.scoring import best_f1, normalised, parse_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<final_answer>Ann</final_answer>", "Ann"),
        ("thinking <FINAL_ANSWER> Ann \n</Final_Answer> bye", "Ann"),
        ("<final_answer>a</final_answer> no: <final_answer>b</final_answer>", "b"),
        ("<final_answer>a</final_answer> <final_answer>b", None),
        ("<final_answer>cut off", None),
        ("nothing", None),
        ("", None),
        ("<final_answer></final_answer>", ""),
        ("<final_answer>two\nlines</final_answer>", "two\nlines"),
        ("<final_answer>broken <final_answer>right</final_answer>", "right"),
    ],
)
def test_parse_answer(text: str, answer: str | None) -> None:
    assert parse_answer(text) == answer


def test_normalised() -> None:
    assert normalised("The  Quick, (brown) fox's an A.") == ["quick", "brown", "foxs"]
    assert normalised("theatre and anthem") == ["theatre", "and", "anthem"], "articles are whole words"


@pytest.mark.parametrize(
    ("answer", "golds", "f1"),
    [
        ("the Eiffel Tower", ["Eiffel Tower"], 1.0),
        ("Eiffel", ["Eiffel Tower"], 2 / 3),
        ("tower of Paris", ["Eiffel Tower"], 0.4),
        ("Rome", ["Eiffel Tower"], 0.0),
        ("Rome", ["Paris", "rome!"], 1.0),
        ("a a cat cat", ["cat"], 2 / 3),
        ("", ["cat"], 0.0),
        ("the", ["a"], 1.0),
        ("x", [], 0.0),
    ],
)
def test_best_f1(answer: str, golds: list[str], f1: float) -> None:
    assert best_f1(answer, golds) == pytest.approx(f1)


@given(st.text(max_size=20), st.text(max_size=20))
def test_f1_is_symmetric_and_within_bounds(one: str, other: str) -> None:
    assert best_f1(one, [other]) == best_f1(other, [one])
    assert 0 <= best_f1(one, [other]) <= 1
    assert best_f1(one, [one]) == 1
