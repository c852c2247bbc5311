"""Every example, on the simulator: its table is the one that its page shows."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hitlab.conftest import Ended, Hitlab, hitlab
from tests.mmmu import FULL_HD, picture, write_mmmu

__all__ = ["hitlab"]  # the fixture

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCENARIOS = sorted(path for path in EXAMPLES.glob("*/*") if path.suffix in {".yaml", ".json"})
MANY, FEW = 250, 40
"""A text scenario of more requests is planned as a whole and sent in part."""
LARGE_POOL = 2**18
"""Blocks of a rank: nothing is evicted."""


def on_the_simulator(path: Path, folder: Path) -> dict[str, Any]:
    """The example, with everything replaced that a host would have to bring."""
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["run"]["output_dir"] = str(folder / "outputs")
    document["tokenizer"]["path"] = "builtin:demo"
    document["service"]["model"] = "demo"
    document["engine"] = {"kind": "simulator", "blocks_per_rank": LARGE_POOL}
    document["driver"] = {**document.get("driver", {}), "kind": "native"}
    if "multimodal" in document:
        write_mmmu(folder / "MMMU" / "test.parquet", [[picture(FULL_HD)]])
        document["multimodal"]["mmmu_parquet_dir"] = str(folder / "MMMU")
    return document


def table_in(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if re.match(r"\s*[╔║╟╚]", line)]


def values_in(text: str) -> dict[str, str]:
    rows = [[cell.strip() for cell in line.strip("║").split("│")] for line in table_in(text) if "│" in line]
    return {row[0]: row[1] for row in rows}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_an_example_prints_the_table_of_its_page(path: Path, tmp_path: Path, hitlab: Hitlab) -> None:
    document = on_the_simulator(path, tmp_path)
    page = (path.parent / "README.md").read_text(encoding="utf-8")
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(yaml.safe_dump(document), encoding="utf-8")
    large = document["requests"]["count"] > MANY
    if large:
        planned: Ended = hitlab("inspect", "--scenario", scenario)
        rate = json.loads(planned.out)["theoretical_hit_rate"]
        assert values_in(page)["Overall Theoretical Hit Rate"] == f"{rate:.2%}"
        document["requests"]["count"] = FEW
        scenario.write_text(yaml.safe_dump(document), encoding="utf-8")
    mode = "mm" if "multimodal" in document else "text"
    prepared: Ended = hitlab("prepare", "--scenario", scenario, "--mode", mode)
    assert prepared.code == 0, prepared.err
    ended: Ended = hitlab("run", "--scenario", scenario)
    assert ended.code == 0, ended.err
    if large:
        values = values_in(ended.out)
        assert list(values) == list(values_in(page))
        assert values["Overall Actual Hit Rate"] == values["Overall Theoretical Hit Rate"]
    else:
        assert table_in(ended.out) == table_in(page) != []


@pytest.mark.parametrize("folder", sorted({path.parent for path in SCENARIOS}), ids=lambda path: path.name)
def test_an_example_has_a_page_that_the_list_names(folder: Path) -> None:
    assert f"({folder.name}/README.md)" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_the_first_page_shows_the_example_of_an_own_engine() -> None:
    text = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert block is not None
    assert yaml.safe_load(block.group(1)) == yaml.safe_load(
        (EXAMPLES / "vllm/vllm.yaml").read_text(encoding="utf-8")
    )
