"""What the command line imports before it knows which command it runs."""

import re
import subprocess
import sys

import pytest

from tests.hitlab.conftest import Hitlab

METAVARS = {
    *(
        "N",
        "F",
        "GB",
        "TOKENS",
        "TOKENS/S",
        "SECONDS",
        "BLOCKS",
        "REQUESTS",
        "DOCUMENTS",
        "PIXELS",
        "IDS",
        "QPS",
    ),
    *(
        "URL",
        "FILE",
        "PATH",
        "DIR",
        "NAME",
        "KIND",
        "STAMP",
        "JSON",
        "PORT",
        "ADDRESS",
        "REVISION",
        "MODE",
        "PHASE",
    ),
    *("OPERATION", "SPEC", "FORMAT", "PID"),
}
"""Units, and what a value is where it has none."""

HEAVY = ("numpy", "pyarrow", "pydantic", "yaml", "requests", "rich.progress", "jinja2", "docker")
OURS = ("analyzer", "generator", "runner", "simulator", "tiers", "prompts", "cachemodel")


def imported_by(code: str) -> set[str]:
    """Names of all modules that a fresh interpreter has after `code`."""
    listing = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules, sep='\\n')"],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(listing.stdout.split())


def test_the_start_is_lazy() -> None:
    """A service, and every library that takes long to import, is imported when a command runs, not before."""
    found = imported_by("import hitlab.main")
    assert "hitlab.commands.run" in found
    assert sorted(found.intersection(HEAVY)) == []
    assert sorted(found.intersection(OURS)) == []


def test_a_bench_takes_nothing_of_scenarios_and_prefix_runs() -> None:
    found = imported_by(
        "import runner.bench.prepare, runner.bench.run, analyzer.bench.analyze, runner.bench.settings"
    )
    assert sorted(name for name in found if name.startswith("contract.scenario")) == []
    assert found.isdisjoint({"analyzer.prediction", "analyzer.ledgers", "transformers", "torch"})


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["sim"],
        ["run"],
        ["report"],
        ["bench", "engine"],
        ["bench", "server"],
        ["bench", "l2"],
        ["bench", "compare"],
    ],
)
def test_help_has_one_style_and_units_as_metavars(hitlab: Hitlab, arguments: list[str]) -> None:
    ended = hitlab(*arguments, "--help")
    assert ended.code == 0
    assert ended.out.startswith(f"Usage: {' '.join(['hitlab', *arguments])} ")
    assert "\nOptions:\n" in ended.out
    assert "Show this message and exit." in ended.out
    for line in ended.out.splitlines():
        option = re.match(r"  --([a-z0-9-]+) ([A-Z_/]+)(  |$)", line)
        assert option is None or option[2] in METAVARS, line
