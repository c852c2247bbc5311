"""What is wrong with a scenario, as one line per problem: where, what was found, what would be right."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from contract.errors import ScenarioError
from contract.foreign import shown
from contract.foreign_text import visible
from contract.redaction import MASK, redacted


@dataclass(frozen=True)
class UnreadNumber:
    """A number of a file that is too long to be read as one; `text` is how it stands there."""

    text: str


@dataclass(frozen=True)
class Problem:
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


SHOWN_PROBLEMS = 50


class ScenarioProblems(ScenarioError):  # noqa: N818 - it is a list of problems, not one error
    """All problems of one scenario; `str()` has one line per problem, of a very long list the first ones."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        lines = [f"{source}: {problem}" for problem in problems[:SHOWN_PROBLEMS]]
        if len(problems) > SHOWN_PROBLEMS:
            lines.append(f"{source}: and {len(problems) - SHOWN_PROBLEMS} more")
        super().__init__("\n".join(lines))


SHOWN = 60


def show(value: Any) -> str:
    """A value found in a file, short enough for one line."""
    text = visible(redacted(_shown(value)))
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, UnreadNumber):
        return value.text[:SHOWN] + "..."
    if isinstance(value, int):
        return shown(value)
    return repr(value)


def dotted(location: Sequence[str | int], raw: Any, *, missing: bool = False) -> str:
    """`("requests", "ranges", 0, "min")` -> `requests.ranges[0].min`.

    pydantic puts the names of union branches into a location; only steps that exist in the file are kept, and the
    last step of a `missing` field.
    """
    path = ""
    node = raw
    for depth, step in enumerate(location):
        last = depth == len(location) - 1
        if isinstance(step, int) and isinstance(node, list) and step < len(node):
            path += f"[{step}]"
            node = node[step]
        elif isinstance(step, str) and isinstance(node, Mapping) and (step in node or (last and missing)):
            name = step if step.isprintable() and step else repr(step)
            path += f".{name}" if path else name
            node = node.get(step)
    return path


def from_validation_error(error: ValidationError, model: type[BaseModel], raw: Any) -> list[Problem]:
    """One problem per distinct path and complaint of a pydantic error."""
    problems: dict[tuple[str, str], Problem] = {}
    for detail in error.errors(include_url=False):
        path = dotted(detail["loc"], raw, missing=detail["type"] == "missing")
        message = _message(detail, model)
        problems.setdefault((path, message), Problem(path, message))
    return list(problems.values())


_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "string_too_short": "a text that is not empty",
}


def _message(detail: ErrorDetails, model: type[BaseModel]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    found = MASK if "api_key" in detail["loc"] else show(detail["input"])
    if kind == "extra_forbidden":
        return _unknown_field(detail["loc"], model)
    if kind == "missing":
        return "is missing"
    if kind == "literal_error":
        return f"found {found}; must be {context['expected']}{_or_null(detail['loc'], model)}"
    if kind in ("greater_than_equal", "greater_than", "less_than_equal", "less_than"):
        limit, sign = next(
            (context[key], sign)
            for key, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
            if key in context
        )
        return f"found {found}; must be {sign} {limit if isinstance(limit, int) else format(limit, 'g')}"
    if kind == "string_pattern_mismatch":
        wanted = {"^-": "start with '-'"}.get(context["pattern"], f"match {context['pattern']}")
        return f"found {found}; must {wanted}"
    if kind in _EXPECTED:
        return f"found {found}; must be {_EXPECTED[kind]}"
    return f"found {found}; {detail['msg'][0].lower()}{detail['msg'][1:]}"


def _unknown_field(location: Sequence[str | int], model: type[BaseModel]) -> str:
    known = _known_fields(location[:-1], model)
    near = difflib.get_close_matches(str(location[-1]), known, n=1)
    if near:
        return f"unknown field; did you mean {near[0]!r}?"
    return "unknown field" + (f"; known here: {', '.join(sorted(known))}" if known else "")


def _or_null(location: Sequence[str | int], model: type[BaseModel]) -> str:
    """What a list of the words that a field takes lacks where null is one more."""
    parent = _model_at(location[:-1], model)
    field = None if parent is None else parent.model_fields.get(str(location[-1]))
    return " or null" if field is not None and type(None) in get_args(field.annotation) else ""


def _known_fields(location: Sequence[str | int], model: type[BaseModel]) -> list[str]:
    """Field names of the model that `location` leads to; empty when it leads elsewhere."""
    found = _model_at(location, model)
    return [] if found is None else list(found.model_fields)


def _model_at(location: Sequence[str | int], model: type[BaseModel]) -> type[BaseModel] | None:
    current: Any = model
    for step in location:
        if isinstance(current, type) and issubclass(current, BaseModel) and step in current.model_fields:
            current = current.model_fields[str(step)].annotation
        else:  # an index of a list or a key of a mapping: its values' type
            arguments = [a for a in get_args(current) if a is not type(None)]
            if not arguments:
                return None
            current = arguments[-1]
        current = _without_none(current)
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _without_none(annotation: Any) -> Any:
    arguments = get_args(annotation)
    if type(None) in arguments:
        return next(a for a in arguments if a is not type(None))
    return annotation
