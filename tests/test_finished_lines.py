"""The watch that all tests stand under sees a hole, and takes what others have written for none."""

import pytest

from contract.errors import ServiceError
from tests.finished_lines import unfinished


@pytest.mark.parametrize(
    "line",
    [
        "the engine counts None tokens where tokenizer.path makes 64",
        "service.model 'm' is not served; set it to ",
        "service.model 'm' is not served; set it to ; or start it",
        "cannot be reached ()",
        "missing DP ranks: ",
    ],
)
def test_holes_are_seen(line: str) -> None:
    assert unfinished(line)


@pytest.mark.parametrize(
    "line",
    [
        "HTTP 404: {'detail': None}",
        "service.model 'None' is not served; set it to 'of'",
        "its metrics show no speculation, which is the known reason to; 96 of 384 tokens will be missing",
    ],
)
def test_whole_lines_are_none(line: str) -> None:
    assert not unfinished(line)


def test_a_line_of_an_error_is_looked_at(finished_lines: list[str]) -> None:
    ServiceError("the engine counts None tokens")
    assert finished_lines.pop() == "the engine counts None tokens"
