"""What the command line imports before it knows which command it runs."""

import subprocess
import sys

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
