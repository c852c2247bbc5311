"""stdout and stderr that are closed, go away or take no more; and little memory, few files, an archive."""

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from contract.run_directory import RunDirectory
from hitlab.streams import lost, outlasting
from tests.hitlab.conftest import REPOSITORY, Ended, Hitlab, WriteScenario, end_of, errors, prepared

TITLE = "Prefix Cache Results of task ["


Streams = Callable[[str, int], None]


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    """Puts a descriptor in the place of stdout or stderr, as a command has it."""

    def put(name: str, descriptor: int) -> None:
        stream = io.TextIOWrapper(io.FileIO(descriptor, "wb", closefd=False), encoding="utf-8")
        monkeypatch.setattr(sys, name, outlasting(stream, descriptor))

    return put


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_reader_that_has_gone_is_not_missed(streams: Streams, name: str) -> None:
    reading, writing = os.pipe()
    streams(name, writing)
    os.close(reading)
    print("a line\n" * 50_000, file=getattr(sys, name), flush=True)
    assert lost() is None
    os.close(writing)


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_what_a_full_disk_did_not_take_is_known(streams: Streams, name: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    streams(name, full)
    print("a line", file=getattr(sys, name), flush=True)
    print("another", file=getattr(sys, name))
    found = lost()
    os.close(full)
    assert found is not None
    assert (found[0], found[1].errno) == (name, errno.ENOSPC)


def test_what_the_encoding_cannot_write_is_escaped(streams: Streams) -> None:
    reading, writing = os.pipe()
    streams("stdout", writing)
    print("\ud800", flush=True)
    assert os.read(reading, 100) == b"\\ud800\n"
    os.close(reading)
    os.close(writing)


COMMAND = f"{sys.executable} -c 'from hitlab.main import main; main()'"


def under_shell(line: str) -> Ended:
    process = subprocess.Popen(
        ["bash", "-c", line], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return end_of(process, 120)


SHELL = {
    "closed": ("<&- >&- 2>&-", 0),
    "no reader": ("2>&1 | true; exit ${PIPESTATUS[0]}", 0),
    "full": (">/dev/full", 3),
}


@pytest.mark.parametrize("how", SHELL)
def test_a_run_ends_whole_whatever_its_output(
    hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario, how: str
) -> None:
    redirection, expected = SHELL[how]
    path = write_scenario(engine_url)
    directory = prepared(hitlab, path)
    ended = under_shell(f"{COMMAND} run --scenario {path} {redirection}")
    assert ended.code == expected, ended.err
    (measurement,) = directory.measurements()
    assert measurement.report.stat().st_size > 5000
    assert hitlab("analyze", "--manifest", directory.manifest, "--measurement", measurement.stamp).code == 0
    if how == "full":
        assert errors(ended) == [
            "ERROR: stdout: cannot be written (No space left on device); free space there and run the command again"
        ]


def test_little_memory_takes_the_charts_and_nothing_else(
    hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario
) -> None:
    path = write_scenario(engine_url)
    directory = prepared(hitlab, path)
    ended = under_shell(f"ulimit -v 8000000; {COMMAND} run --scenario {path}")
    assert ended.code == 0, ended.err
    assert ended.out.startswith(TITLE)
    (measurement,) = directory.measurements()
    assert f"WARNING: {measurement.report}: has no charts: the renderer was ended by SIG" in ended.err
    assert "Not drawn: the renderer was ended by SIG" in measurement.report.read_text()


def test_an_archive_is_validated_without_a_log(
    hitlab: Hitlab, engine_url: str, write_scenario: WriteScenario
) -> None:
    """A folder that nobody may write to, root included: a file stands where the log's folder would be."""
    directory = prepared(hitlab, write_scenario(engine_url))
    archive(directory)
    ended = hitlab("--quiet", "validate", "--manifest", directory.manifest)
    assert ended.code == 0
    assert '"ok": true' in ended.out
    assert ended.err == (
        f"WARNING: {directory.log('validate')}: cannot be written (File exists); nothing is logged\n"
    )
    directory.full.write_bytes(directory.full.read_bytes().replace(b"a", b"b", 1))
    ended = hitlab("--quiet", "validate", "--manifest", directory.manifest)
    assert ended.code == 3
    assert len(errors(ended)) == 1


def archive(directory: RunDirectory) -> None:
    (directory.root / "log").rename(directory.root / "old-log")
    (directory.root / "log").write_text("")
