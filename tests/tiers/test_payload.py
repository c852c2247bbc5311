"""Payloads: reproducible, incompressible, different everywhere."""

import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tiers.payload import POISON, difference, payload

PINNED = "58f9242d5ab08fe1"
IDENTITIES = st.lists(st.integers(0, 2**60), min_size=1, max_size=4)


def test_the_stream_is_what_it_was_when_results_were_published() -> None:
    # Written down once: objects that an earlier version stored have to be met by a later one.
    assert payload("l2", 0, 1024, 0, size=8).tobytes().hex() == PINNED


@given(IDENTITIES, IDENTITIES, st.integers(64, 5000))
def test_same_identity_same_bytes_and_another_identity_other_bytes(
    one: list[int], other: list[int], size: int
) -> None:
    first = payload(*one, size=size)
    assert first.nbytes == size
    assert np.array_equal(first, payload(*one, size=size))
    if one != other:
        assert not np.array_equal(first, payload(*other, size=size))


def test_a_longer_payload_begins_with_the_shorter() -> None:
    assert np.array_equal(payload(1, size=4096)[:100], payload(1, size=100))


def test_it_does_not_compress() -> None:
    data = payload(7, size=1 << 20).tobytes()
    assert len(zlib.compress(data, 9)) > 0.999 * len(data)


def test_no_byte_is_like_the_poison_in_more_than_its_share() -> None:
    share = float((payload(3, size=1 << 20) == POISON).mean())
    assert abs(share - 1 / 256) < 1 / 2560


@given(st.integers(0, 999), st.integers(1, 255))
def test_one_wrong_byte_is_named_with_its_offset(offset: int, change: int) -> None:
    right = payload(5, size=1000)
    wrong = right.copy()
    wrong[offset] ^= change
    assert difference(right, right) is None
    text = difference(wrong, right)
    assert text is not None
    assert text.startswith(f"1 of 1000 bytes differ, the first at offset {offset} ")


def test_poison_that_was_never_overwritten_is_called_that() -> None:
    untouched = np.full(64, POISON, dtype=np.uint8)
    assert "still poisoned" in str(difference(untouched, payload(1, size=64)))
