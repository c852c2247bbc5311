"""Run directories of release 0.1.0 (a small `make demo` and a run with images) are still read.

The archives are never recorded anew: a later release adds its own beside them.
"""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from contract.run_directory import RunDirectory
from tests.hitlab.conftest import Hitlab

RELEASE = Path(__file__).parent / "release"


@pytest.fixture(autouse=True)
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzer.html_report.skeleton.draw", lambda specs, _labels: ["" for _ in specs])


def facts(analysis: dict[str, Any]) -> dict[str, Any]:
    """What the documents say of the cache, which no later release may read differently."""
    actual, theory = analysis["actual"], analysis.get("theory") or analysis["expected"]
    return {
        "status": analysis["status"],
        "hits": actual["global_hits"],
        "queries": actual["global_queries"],
        "theory": theory["hit_tokens"],
        "by_dp": {rank: (part["hits"], part["queries"]) for rank, part in actual["by_dp"].items()},
        "ledgers": {name: state["status"] for name, state in analysis["validation"]["ledgers"].items()},
    }


@pytest.mark.parametrize("name", ["demo", "images"])
def test_documents_of_a_release_are_still_read(hitlab: Hitlab, tmp_path: Path, name: str) -> None:
    with tarfile.open(RELEASE / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    (manifest,) = tmp_path.glob("*/result/*.manifest.json")
    directory = RunDirectory.of_manifest(manifest)
    recorded = facts(json.loads(directory.analysis.read_text()))
    assert recorded["status"] == "complete"
    assert recorded["hits"] == recorded["theory"] > 0
    (measured,) = directory.measurements()

    assert hitlab("validate", "--manifest", manifest).code == 0
    ended = hitlab("analyze", "--manifest", manifest, "--measurement", measured.stamp)
    assert ended.code == 0, ended.err
    assert facts(json.loads(ended.out)) == facts(json.loads(directory.analysis.read_text())) == recorded
    ended = hitlab("analyze", "--manifest", manifest, "--measurement", measured.stamp, "--table")
    assert ended.code == 0, ended.err
    reported = hitlab("report", "--manifest", manifest)
    assert reported.code == 0, reported.err
    assert json.loads(reported.out)["hit_rate"]["actual"] is not None
    assert measured.report.is_file()
