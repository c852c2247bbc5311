"""What every value of a scenario has to be, whichever field it stands in: plain JSON that any later reader can take.

Numbers are finite and fit into 64 bits (manifests are read back by parsers that know no larger ones), texts can be
written as UTF-8 and be part of a path, nesting has an end.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from contract.foreign import DEEPEST
from contract.scenario.problems import Problem, UnreadNumber, show

LARGEST_INTEGER = 2**63 - 1


UNUSABLE = object()
"""Stands where a value was taken out: no field accepts it, so nothing goes on with it."""


def plain(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """A copy of `document` with UNUSABLE where a value cannot be used, and a problem for each of these places."""
    problems: list[Problem] = []
    return _plain_object(document, "", 0, problems), problems


def _plain(value: Any, path: str, depth: int, problems: list[Problem]) -> Any:
    if isinstance(value, Mapping | list) and depth < DEEPEST:
        if isinstance(value, Mapping):
            return _plain_object(value, path, depth, problems)
        return [_plain(item, f"{path}[{at}]", depth + 1, problems) for at, item in enumerate(value)]
    complaint = _complaint(value)
    if complaint is None:
        return value
    problems.append(Problem(path, complaint))
    return UNUSABLE


def _plain_object(value: Mapping[str, Any], path: str, depth: int, problems: list[Problem]) -> dict[str, Any]:
    copy: dict[str, Any] = {}
    for key, item in value.items():
        complaint = _complaint(key)
        if complaint is not None or not isinstance(key, str):
            problems.append(Problem(path, f"has the key {show(key)}: {complaint or 'keys are texts'}"))
            continue
        step = key if key.isprintable() and key else repr(key)
        copy[key] = _plain(item, f"{path}.{step}" if path else step, depth + 1, problems)
    return copy


def _complaint(value: Any) -> str | None:
    """What is wrong with a value that holds no others; None when nothing is."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        if "\0" in value:
            return f"found {show(value)}; must hold no NUL character"
        if not _encodable(value):
            return f"found {show(value)}; must hold no half of a surrogate pair"
        return None
    if isinstance(value, UnreadNumber) or (isinstance(value, int) and abs(value) > LARGEST_INTEGER):
        return f"found {show(value)}; must fit into 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"found {value}; must be a finite number"
    if isinstance(value, int):
        return None
    if isinstance(value, Mapping | list):
        return f"is nested more than {DEEPEST} levels deep"
    return f"found a {type(value).__name__}; must be a text, a number, true, false, null, a list or an object"


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def without_the_known(problems: Iterable[Problem], known: Iterable[Problem]) -> list[Problem]:
    """`problems` but for those that only repeat that a value in or below their place is UNUSABLE."""
    places = {problem.path for problem in known}
    above = {place[:end] for place in places for end, sign in enumerate(place) if sign in ".["}
    return [problem for problem in problems if problem.path not in places | above]
