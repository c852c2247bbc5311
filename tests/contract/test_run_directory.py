"""Run directories: names, stamps, collisions, and files that appear whole or not at all."""

import threading
from datetime import datetime
from pathlib import Path

import pytest

from contract.documents import whole_file, write_document
from contract.errors import ArtifactError
from contract.run_directory import RunDirectory, create_run_directory, existing_run_directories

NOON = datetime(2026, 8, 25, 12, 0, 59)


def test_names(tmp_path: Path) -> None:
    directory = create_run_directory(tmp_path / "deep" / "out", "job", lambda: NOON)
    assert directory.root == tmp_path / "deep" / "out_20260825_120059"
    assert directory.full == directory.root / "result" / "job_20260825_120059.full.jsonl"
    assert directory.log("run") == directory.root / "log" / "job_20260825_120059.run.log"
    assert directory.result.is_dir()


def test_a_collision_takes_the_next_free_second(tmp_path: Path) -> None:
    roots = [create_run_directory(tmp_path / "out", "job", lambda: NOON).root.name for _ in range(3)]
    assert roots == ["out_20260825_120059", "out_20260825_120100", "out_20260825_120101"]


def test_many_at_once_never_share_a_directory(tmp_path: Path) -> None:
    made: list[RunDirectory] = []
    threads = [
        threading.Thread(
            target=lambda: made.append(create_run_directory(tmp_path / "out", "job", lambda: NOON))
        )
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({directory.root for directory in made}) == 16


def test_measurements_get_directories_of_their_own(tmp_path: Path) -> None:
    directory = create_run_directory(tmp_path / "out", "job", lambda: NOON)
    stamps = [directory.new_measurement(lambda: NOON).stamp for _ in range(2)]
    assert stamps == ["20260825_120059", "20260825_120100"]


def test_existing_directories_newest_first_and_only_this_tasks(tmp_path: Path) -> None:
    for hour in (1, 3, 2):
        made = create_run_directory(tmp_path / "out", "job", lambda hour=hour: NOON.replace(hour=hour))
        write_document(made.manifest, {})
    create_run_directory(tmp_path / "out", "job", lambda: NOON.replace(hour=9))  # holds no manifest
    other = create_run_directory(tmp_path / "out", "other", lambda: NOON.replace(hour=10))
    write_document(other.manifest, {})
    (tmp_path / "out_x").mkdir()
    (tmp_path / "out_20269925_120059").mkdir()
    found = [directory.root.name[-6:] for directory in existing_run_directories(tmp_path / "out", "job")]
    assert found == ["030059", "020059", "010059"]
    assert list(existing_run_directories(tmp_path / "none" / "out", "job")) == []


def test_a_file_in_the_way_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match=r"change run.output_dir"):
        create_run_directory(tmp_path / "file" / "out", "job")


def test_files_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_document(path, {"b": 1, "a": "ü"})
    assert path.read_text(encoding="utf-8") == '{\n  "a": "ü",\n  "b": 1\n}\n'

    def interrupted() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert path.read_text(encoding="utf-8").startswith('{\n  "a"')
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_documents_hold_finite_numbers_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_document(tmp_path / "a.json", {"rate": float("nan")})
    assert list(tmp_path.iterdir()) == []
