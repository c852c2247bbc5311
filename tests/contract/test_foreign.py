import json
import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.foreign import (
    DEEPEST,
    LARGEST_COUNT,
    LARGEST_TOKENS,
    LONGEST_NAME,
    ForeignDocumentError,
    counted,
    decimal_number,
    finite,
    json_document,
    name,
    shown,
    token_count,
    token_ids,
    whole_number,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
NUMBERS = st.integers(-(10**400), 10**400) | st.floats()


@given(JSON)
def test_a_token_count_is_a_whole_number_within_the_bound_or_nothing(value):
    found = token_count(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_TOKENS
    assert found == (value if is_count else None)
    assert name(value) is None or orjson.dumps(name(value))


@given(st.lists(JSON, max_size=4) | JSON)
def test_token_ids_are_all_ids_or_none_at_all(value):
    found = token_ids(value)
    assert (found is not None) == (isinstance(value, list) and all(token_count(v) is not None for v in value))


@given(NUMBERS)
def test_a_counter_is_exact_or_nothing(value):
    found = counted(value)
    if found is None:
        assert not (math.isfinite(min(abs(value), 1e300)) and 0 <= value <= LARGEST_COUNT and value % 1 == 0)
    else:
        assert found == value
        assert 0 <= found <= LARGEST_COUNT
    assert finite(value) is None or orjson.loads(orjson.dumps(finite(value))) == value
    assert len(shown(value)) < 60


@given(st.text(max_size=30) | st.integers(0, 10**25).map(str))
def test_a_written_number_is_what_int_makes_of_it_or_nothing(text):
    found = decimal_number(text)
    assert found is None or (found == int(text) and found <= LARGEST_COUNT)
    if text.isascii() and text.isdigit() and int(text) <= LARGEST_COUNT:
        assert found == int(text)


@pytest.mark.parametrize("text", ["", "1_0", "+1", "-1", " 1", "1 ", "1.0", "٣", "²", "9" * 5000, None])
def test_other_spellings_are_no_number(text):
    assert decimal_number(text) is None


def test_zeros_in_front_do_not_count():
    assert decimal_number("0" * 5000 + "7") == 7
    assert decimal_number("0" * 5000) == 0
    assert decimal_number("11", most=9) is None


def test_numbers_and_names_at_their_bounds():
    assert whole_number(9, 9) == 9
    assert whole_number(10, 9) is None
    assert name("x" * LONGEST_NAME)
    assert name("x" * (LONGEST_NAME + 1)) is None
    assert name("") is None


@given(JSON.map(lambda value: json.dumps(value, allow_nan=True).encode()) | st.binary(max_size=40))
def test_a_document_is_read_or_refused(content):
    try:
        assert orjson.dumps(json_document(content))
    except ForeignDocumentError:
        with pytest.raises(ForeignDocumentError, match=r"\A[^\n]+\Z"):
            json_document(content)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b"[" * (DEEPEST + 2) + b"]" * (DEEPEST + 2),
        b'{"a":' * 500 + b"1" + b"}" * 500,
        b'"\\ud800"',
        b"1e999",
        b"9" * 5000,
        b"NaN",
        b"\xff",
        b"",
    ],
)
def test_what_cannot_be_read_is_one_line(content):
    with pytest.raises(ForeignDocumentError):
        json_document(content)


def test_the_deepest_document_is_read():
    assert json_document(b"[" * DEEPEST + b"]" * DEEPEST)
