"""Which engine is older than which."""

import pytest

from contract.engine_version import is_before, parse_version


@pytest.mark.parametrize(
    ("text", "release", "before"),
    [
        ("0.32.0+cpu", "0.27.1", False),
        ("0.11.2.dev3", "0.11.2", True),
        ("0.11.2.dev3+g0123abc", "0.11.1", False),
        ("0.27.1", "0.27.1", False),
        ("0.27.0", "0.27.1", True),
        ("v0.9.1", "0.11.1", True),
        ("0.11.1rc7", "0.11.1", True),
        ("0.10", "0.9.9", False),
        ("1.0.0", "0.33.0", False),
        ("0.27.1.post1", "0.27.1", False),
        ("0.27.1+rc.local", "0.27.1", False),
        (None, "0.27.1", None),
        ("", "0.27.1", None),
        ("nightly", "0.27.1", None),
        ("0.1.dev1+g0123abc", "0.27.1", None),
        ("9" * 5000 + ".1.0", "0.27.1", None),
        ("0.1." + "9" * 5000, "0.27.1", None),
        ("0.٣.1", "0.27.1", None),
    ],
)
def test_versions_are_compared_by_number_and_release(
    text: str | None, release: str, before: bool | None
) -> None:
    assert is_before(parse_version(text), release) is before
