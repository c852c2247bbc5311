import json
from datetime import datetime
from pathlib import Path

import pytest

from contract.errors import DriverError
from runner.drivers.aisbench.results import collect, new_results_folder

NOW = datetime(2026, 11, 29, 23, 59, 59)


def test_runs_of_one_second_get_folders_of_their_own(tmp_path: Path) -> None:
    folders = [new_results_folder(tmp_path / "not there yet", NOW).name for _ in range(3)]
    assert folders == ["20261129_235959", "20261130_000000", "20261130_000001"]


def test_a_work_dir_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("")
    with pytest.raises(DriverError, match=r"aisbench\.work_dir"):
        new_results_folder(tmp_path / "w", NOW)


def write(folder: Path, name: str, text: str) -> None:
    path = folder / "performances" / "m" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


SUMMARY = {"Total Requests": {"total": 5}, "Failed Requests": {"total": 2}}


def test_the_tables_of_this_run_are_copied(tmp_path: Path) -> None:
    write(tmp_path, "d.csv", "a,b\n")
    write(tmp_path, "d.json", json.dumps(SUMMARY))
    write(tmp_path, "other.csv", "newer\n")
    into = tmp_path / "into"
    into.mkdir()
    results = collect(tmp_path, model_abbr="m", dataset_abbr="d", into=into)
    assert (results.total, results.failed) == (5, 2)
    assert results.csv.read_text() == "a,b\n"
    assert json.loads(results.summary.read_text()) == SUMMARY


@pytest.mark.parametrize("summary", ["", "[]", "{}", '{"Total Requests": {"total": "many"}}'])
def test_a_summary_that_says_nothing(tmp_path: Path, summary: str) -> None:
    write(tmp_path, "d.csv", "")
    write(tmp_path, "d.json", summary)
    with pytest.raises(DriverError, match="not AISBench's summary"):
        collect(tmp_path, model_abbr="m", dataset_abbr="d", into=tmp_path)


def test_missing_tables(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match=r"has left no .*d\.csv"):
        collect(tmp_path, model_abbr="m", dataset_abbr="d", into=tmp_path)
