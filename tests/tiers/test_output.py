"""Samples, page, comparison, flame graphs: what surrounds a result."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from contract.errors import ScenarioError, ServiceError
from tests.tiers.memory_l2 import MemoryL2
from tiers.comparison import compare, summary
from tiers.flamegraph import FlameGraphs, parse_modes, require_tools
from tiers.l2.bench import L2Result, document, run
from tiers.l2.parameters import L2Parameters
from tiers.l2.specs import Spec
from tiers.report.page import l2_charts, write_page
from tiers.samples import l2_table, write_table
from tiers.sections import WIDTH, render


def result(**options: Any) -> L2Result:
    parameters = L2Parameters(
        **{"num_keys": 2, "in_flight": (2,), "data_size_kb": (1,), "rounds": 3, **options}
    )
    backend = MemoryL2()
    backend.name = "<script>alert(1)</script>"
    return run([Spec({"type": "memory", "password": "canary"})], parameters, lambda *_: backend)


def test_samples_have_a_row_per_task_with_warmups_marked(tmp_path: Path) -> None:
    write_table(tmp_path / "samples.parquet", l2_table(result().cells))
    rows = pq.read_table(tmp_path / "samples.parquet").to_pylist()
    assert len(rows) == 3 * 4 * 2
    assert sum(row["warmup"] for row in rows) == 3 * 1 * 2
    assert {row["operation"] for row in rows} == {"store", "lookup", "load"}
    assert all(row["seconds"] > 0 for row in rows)


def test_the_page_has_charts_no_script_and_no_secret(tmp_path: Path) -> None:
    made = result()
    described = document(made, {"lmcache": "0.5.6"})
    write_page(tmp_path / "page.html", described, l2_charts(described, made.cells))
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg") == 2
    assert "<script" not in text
    assert "canary" not in text + json.dumps(described)
    assert described["verdict"]["line"] in text


def test_a_run_compared_with_itself_differs_in_nothing() -> None:
    described = document(result(), {"lmcache": "0.5.6"})
    comparison = compare(described, json.loads(json.dumps(described)))
    assert comparison.pairs
    assert {pair.ratio for pair in comparison.pairs} == {1.0}
    assert comparison.different == ()


def test_what_differs_is_named_and_the_ratio_is_now_over_before() -> None:
    before = json.loads(json.dumps(document(result(), {"lmcache": "0.5.5"})))
    now = document(result(), {"lmcache": "0.5.6"})
    before["cells"][0]["operations"]["load"]["avg_throughput_mbps"] = 50.0
    now["cells"][0]["operations"]["load"]["avg_throughput_mbps"] = 100.0
    comparison = compare(now, before)
    pair = next(
        item for item in comparison.pairs if "load" in item.where and item.figure == "avg_throughput_mbps"
    )
    assert pair.ratio == 2.0
    assert comparison.different == ("versions.lmcache: 0.5.5 before, 0.5.6 now",)
    assert "(x2.00)" in summary(comparison)


@pytest.mark.parametrize("other", [{}, {"kind": "server", "operations": {}}, {"kind": "self-test"}])
def test_results_of_something_else_are_not_compared(other: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError, match="--compare"):
        compare(document(result(), {}), other)


def test_lines_of_a_summary_keep_their_width_or_wrap() -> None:
    text = render("Title", [("Section", {"short": 1, "long": "word " * 40, "none": None, "float": 3.14159})])
    assert max(len(line) for line in text.splitlines()) == WIDTH
    assert "n/a" in text
    assert "3.142" in text


def test_modes_and_their_paths() -> None:
    assert parse_modes("gil, wall") == ("gil", "wall")
    for wrong in ("", "cpu", "gil,cpu", ","):
        with pytest.raises(ScenarioError, match="--flamegraph-mode"):
            parse_modes(wrong)
    default = FlameGraphs(("on-cpu", "wall"), None, Path())
    assert str(default.path("on-cpu", "FSL2Adapter")) == "/tmp/lmcache_bench_flames/FSL2Adapter.oncpu.svg"  # noqa: S108 - the guide's
    assert FlameGraphs(("wall",), Path("a/b.svg"), Path()).path("wall", "x") == Path("a/b.svg")
    several = FlameGraphs(("off-cpu", "wall"), Path("a/b.svg"), Path())
    assert [several.path(mode, "x") for mode in several.modes] == [
        Path("a/b.offcpu.svg"),
        Path("a/b.wall.svg"),
    ]


def test_every_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(ScenarioError) as error:
        require_tools(FlameGraphs(("on-cpu", "off-cpu", "wall"), None, tmp_path))
    for name in ("perf", "stackcollapse-perf.pl", "flamegraph.pl", "offcputime", "py-spy"):
        assert name in str(error.value)


def test_a_process_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "py-spy"
    tool.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    require_tools(FlameGraphs(("gil",), None, tmp_path, os.getpid()))
    with pytest.raises(ServiceError, match="--profile-server-pid"):
        require_tools(FlameGraphs(("gil",), None, tmp_path, 2**22 + 1))
