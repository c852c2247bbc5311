"""Finding measurements, and following their events."""

import fcntl
import os
import shutil
import time
import tracemalloc
from pathlib import Path

import pytest

from analyzer.watch.runs import RunEvents, find_measurements
from tests.analyzer.watch.conftest import event, whole_run


def run_directory(artifacts: Path, name: str, *stamps: str, events: bool = True) -> Path:
    root = artifacts / name
    (root / "result").mkdir(parents=True)
    (root / "result" / f"{root.name}.manifest.json").write_text("{}")
    for stamp in stamps:
        (root / "result" / "runs" / stamp).mkdir(parents=True)
        if events:
            (root / "result" / "runs" / stamp / "events.jsonl").touch()
    return root


def test_measurements_are_found_newest_first(tmp_path: Path) -> None:
    run_directory(tmp_path, "a", "20260101_000000", "20260103_000000")
    run_directory(tmp_path, "team/deep/b", "20260102_000000")
    run_directory(tmp_path, "c")
    run_directory(tmp_path, "offline", "20260109_000000", events=False)
    found = find_measurements(tmp_path)
    assert [item.identity for item in found] == [
        ("a", "20260103_000000"),
        ("b", "20260102_000000"),
        ("a", "20260101_000000"),
    ]


@pytest.mark.parametrize("copy", ["a_20260101_000000 (copy)", "0-backup/a_20260101_000000", "z/old"])
def test_a_copied_run_directory_is_one_run(tmp_path: Path, copy: str) -> None:
    """Else its series would stand twice in the metrics, which no Prometheus takes."""
    original = run_directory(tmp_path, "a_20260101_000000", "20260101_000001", "20260101_000002")
    shutil.copytree(original, tmp_path / copy)
    found = find_measurements(tmp_path)
    assert [item.identity for item in found] == [
        ("a_20260101_000000", "20260101_000002"),
        ("a_20260101_000000", "20260101_000001"),
    ]
    assert len({item.run.root for item in found}) == 1
    if "a_" not in copy or copy.endswith("(copy)"):
        assert found[0].run.root == original


def test_links_and_hidden_folders_are_not_entered(tmp_path: Path) -> None:
    run_directory(tmp_path / "elsewhere", "a", "20260101_000000")
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    (artifacts / "link").symlink_to(tmp_path / "elsewhere")
    run_directory(artifacts, ".hidden/b", "20260101_000000")
    (artifacts / "loop").symlink_to(artifacts)
    assert find_measurements(artifacts) == []
    assert find_measurements(tmp_path / "nowhere") == []


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def line(kind: str, **fields: object) -> str:
    import json

    return json.dumps(event(1, kind, **fields)) + "\n"


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    text = line("phase_started", phase="formal")
    events = RunEvents(path)
    for index in range(len(text)):
        write(path, text[index])
        assert events.read(time.time()) is (index == len(text) - 1)
    assert [item["phase"] for item in events.events] == ["formal"]
    assert events.read(time.time()) is False


@pytest.mark.parametrize(
    "damaged",
    [
        "\n",
        "{\n",
        "[]\n",
        "3\n",
        '{"event": "warning"}\n',
        '{"time": "yesterday", "event": "x"}\n',
        '{"time": 3, "event": "x"}\n',
        line("phase_started"),
        line("phase_started", phase=3),
        line("warning", code="X"),
        "\x00\xff\n",
    ],
)
def test_a_damaged_line_is_passed_over(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "events.jsonl"
    write(path, damaged + line("phase_started", phase="formal"))
    events = RunEvents(path)
    events.read(time.time())
    assert [item["phase"] for item in events.events] == ["formal"]


def test_a_run_that_says_so_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = RunEvents(path)
    for item in whole_run():
        assert not events.ended
        write(path, line(item["event"], **{k: v for k, v in item.items() if k not in ("time", "event")}))
        events.read(time.time())
    assert events.ended


def test_a_silent_run_has_ended_when_nobody_writes_for_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, line("phase_started", phase="formal"))
    events = RunEvents(path)
    events.read(time.time())
    with path.open("ab") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        events.read(time.time() + 3600)
        assert not events.ended, "a long phase is silent too"
    events.read(time.time() + 5)
    assert not events.ended, "it may just have begun"
    assert events.read(time.time() + 3600) is True
    assert events.ended
    write(path, line("run_finished", status="interrupted", error="killed"))
    assert events.read(time.time()) is True
    assert events.ended


def test_a_file_that_goes_away_is_no_end(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, line("phase_started", phase="formal"))
    events = RunEvents(path)
    events.read(time.time())
    os.remove(path)  # noqa: PTH107 - as a user does
    assert events.read(time.time()) is False
    assert len(events.events) == 1


def test_a_line_without_end_is_read_once_and_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.jsonl"
    write(path, line("phase_started", phase="formal"))
    with path.open("ab") as file:
        file.write(b'{"x": "' + b"x" * (60 << 20))
    events = RunEvents(path)
    assert events.read(time.time()) is True
    tracemalloc.start()
    try:
        assert events.read(time.time()) is False
        assert tracemalloc.get_traced_memory()[1] < 4 << 20, "nothing of it again"
    finally:
        tracemalloc.stop()
    write(path, '"}\n' + line("phase_started", phase="settle"))
    assert events.read(time.time()) is True
    assert [item["phase"] for item in events.events] == ["formal", "settle"]
    assert len(caplog.records) == 1
    assert len(caplog.records[0].getMessage()) < 300
