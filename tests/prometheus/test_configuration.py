"""Scrape configuration and recording rules, judged by Prometheus' own promtool."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from contract.file_sd import TARGETS

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "prometheus"


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("promtool is not installed; it is in Debian's package prometheus")
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("name", ["prometheus.yml", "prometheus.demo.yml"])
def test_the_configuration_is_valid(name: str) -> None:
    checked = promtool("check", "config", FOLDER / name)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "rules found" in checked.stdout


def test_promtool_refuses_what_is_wrong(tmp_path: Path) -> None:
    """The judge is awake."""
    text = (FOLDER / "prometheus.yml").read_text()
    (tmp_path / "wrong.yml").write_text(text.replace("scrape_interval: 5s", "scrape_interval: 5 apples"))
    assert promtool("check", "config", tmp_path / "wrong.yml").returncode != 0
    rules = (FOLDER / "rules" / "engine.yml").read_text()
    (tmp_path / "rules.yml").write_text(rules.replace("sum without (rank)", "sum wihtout (rank)", 1))
    assert promtool("check", "rules", tmp_path / "rules.yml").returncode != 0


def test_the_rules_compute_what_was_worked_out_by_hand() -> None:
    tested = promtool("test", "rules", Path(__file__).parent / "engine.test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_the_demo_differs_in_its_intervals_alone() -> None:
    normal, demo = (
        [line for line in (FOLDER / name).read_text().splitlines() if not line.startswith("#")]
        for name in ("prometheus.yml", "prometheus.demo.yml")
    )
    different = [(left, right) for left, right in zip(normal, demo, strict=True) if left != right]
    assert len(different) == 4
    for left, right in different:
        assert left.split(":")[0] == right.split(":")[0]
        assert left.split(":")[0].strip().endswith(("_interval", "_timeout"))
        assert right.split(":")[1].strip() == "1s"


def test_engines_are_looked_for_where_runs_publish_them() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (job,) = (job for job in config["scrape_configs"] if job["job_name"] == "engine")
    (source,) = job["file_sd_configs"]
    assert source["files"] == [str(Path("/artifacts") / TARGETS / "*.json")]
    assert config["global"]["scrape_interval"] == "5s"
