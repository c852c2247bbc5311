"""Every warning code has its meaning, and none has one for nothing."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.warnings import WARNING_TEXTS, warning_message

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("analyzer", "contract", "enginemetrics", "generator", "runner")
CODE = re.compile(r"[A-Z]+(_[A-Z]+)*")
WARN = {"Finding", "Issue", "warn"}


def sources() -> list[Path]:
    """Everything that may warn, but the table of texts itself."""
    found = [path for package in PACKAGES for path in sorted((REPOSITORY / package).rglob("*.py"))]
    return [path for path in found if path != REPOSITORY / "contract" / "warnings.py"]


def upper_case(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and CODE.fullmatch(part.value):
            yield part.value


def named_code(target: ast.AST) -> bool:
    names = {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    return bool(names & {"code", "FindingCode"})


def warns(tree: ast.AST) -> Iterator[str]:
    """Codes in all the ways in which the source gives one."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="code", value=value):
                yield from upper_case(value)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "code":
                        yield from upper_case(value)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=arguments) if name in WARN:
                for argument in arguments:
                    yield from upper_case(argument)
            case ast.Assign(targets=[target], value=value) if named_code(target):
                yield from upper_case(value)
            case ast.AnnAssign(target=target, annotation=annotation) if named_code(target):
                yield from upper_case(annotation)
            case ast.For(target=target, iter=values) | ast.comprehension(target=target, iter=values):
                if named_code(target):
                    yield from upper_case(values)


def test_every_code_has_a_meaning() -> None:
    unexplained = {
        code: str(path.relative_to(REPOSITORY))
        for path in sources()
        for code in warns(ast.parse(path.read_text(encoding="utf-8")))
        if code not in WARNING_TEXTS
    }
    assert not unexplained, "give these a text in contract/warnings.py"


def test_every_meaning_has_a_code() -> None:
    found = {code for path in sources() for code in warns(ast.parse(path.read_text(encoding="utf-8")))}
    assert found == WARNING_TEXTS.keys()


@pytest.mark.parametrize("code", sorted(WARNING_TEXTS))
def test_texts_are_whole_sentences(code: str) -> None:
    text = WARNING_TEXTS[code]
    for part in (text.meaning, text.advice):
        assert part[0].isupper()
        assert part.endswith(".")
        assert "  " not in part


def test_each_kind_of_entry_has_a_message() -> None:
    assert warning_message({"code": "X", "message": "said"}) == "said"
    assert warning_message({"code": "X", "difference_pp": 1.234}) == "1.23 pp"
    reachable = {"requested_target_hit_rate": 1.0, "reachable_min": 0.0, "reachable_max": 0.9}
    assert warning_message({"code": "X", **reachable}) == "100.00% requested, 0.00% to 90.00% reachable"
