"""Import contracts: which package may import which, and that what lies lower in the analyzer knows nothing above it."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = {"cachemodel", "contract", "enginemetrics", "prompts"}
MAY_IMPORT: dict[str, set[str]] = {
    "contract": set(),
    "cachemodel": {"contract"},
    "enginemetrics": {"contract"},
    "prompts": {"contract"},
    "generator": SHARED - {"enginemetrics"},
    "simulator": SHARED - {"enginemetrics"},
    "runner": SHARED,
    "analyzer": SHARED,
    "tiers": {"contract"},
    "hitlab": {"analyzer", "generator", "runner", "simulator", "tiers", "contract", "enginemetrics"},
}
"""Services meet in the run directory; the command line alone knows them all."""

ANALYZER = (
    {"watch"},
    {"analyze", "offline", "report"},
    {"report_page"},
    {"table"},
    {"texts", "multimodal", "bench"},
    {"html_report"},
)
"""From top to bottom: watch, analyze, page, kinds, parts of a page. Every other module of the analyzer lies below:
findings (document, ledgers, causes ...) and what a measurement holds (request_table, scrapes ...)."""


def modules(package: str) -> dict[str, Path]:
    found = {}
    for file in (ROOT / package).rglob("*.py"):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(file: Path, module: str = "") -> Iterator[str]:
    """Names that a file imports, wherever in it: inside a function as well."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_those_it_may(package: str) -> None:
    wrong = {
        f"{name} imports {target}"
        for name, file in modules(package).items()
        for target in imported(file, name)
        if (top := target.partition(".")[0]) in MAY_IMPORT and top not in MAY_IMPORT[package] | {package}
    }
    assert not wrong, sorted(wrong)


def graph(package: str) -> dict[str, set[str]]:
    """Module -> the modules of the same package that it imports."""
    known = modules(package)
    found: dict[str, set[str]] = defaultdict(set)
    for name, file in known.items():
        found[name] |= {target for target in imported(file, name) if target in known and target != name}
    return found


@pytest.mark.parametrize("package", [*MAY_IMPORT, "aisbench_plugin/hitlab_aisbench"])
def test_there_is_no_circle_of_modules(package: str) -> None:
    try:
        TopologicalSorter(without_packages(graph(package))).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def without_packages(found: dict[str, set[str]]) -> dict[str, set[str]]:
    """Importing a module names its package as well, which says nothing of who needs whom."""
    return {
        name: {target for target in targets if not name.startswith(f"{target}.")}
        for name, targets in found.items()
    }


def floor(module: str) -> int:
    """0 is the highest."""
    part = module.split(".")[1] if "." in module else ""
    return next((number for number, parts in enumerate(ANALYZER) if part in parts), len(ANALYZER))


def test_the_analyzer_imports_downwards() -> None:
    found = graph("analyzer")
    up = {
        f"{name} imports {target}"
        for name, targets in found.items()
        for target in targets
        if target != "analyzer" and floor(target) < floor(name)
    }
    assert not up, sorted(up)
    across = {
        f"{name} imports {target}"
        for name, targets in found.items()
        for target in targets
        if floor(name) == floor(target) == 4 and name.split(".")[1] != target.split(".")[1]
    }
    assert not across, "one kind does not know another"
    assert {floor(name) for name in found} == set(range(len(ANALYZER) + 1)), "every floor is there"


def test_an_import_inside_a_function_counts(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "def late():\n    from runner.measure import measure\n    from . import near\n    return measure, near\n"
    )
    assert set(imported(file, "analyzer.module")) == {
        "runner.measure",
        "runner.measure.measure",
        "analyzer",
        "analyzer.near",
    }
