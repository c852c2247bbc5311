"""A disk that is full, too small or not writable: one line, exit code 3, no half file, and the load does not hang."""

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.documents import unwritable
from contract.run_directory import MeasurementDirectory, RunDirectory
from contract.streams import read_stream
from simulator.http import Request, Response
from tests.hitlab.conftest import Ended, Hitlab, Job, WriteScenario, document, end_of, errors, start_command
from tests.misbehaving_server import MisbehavingServer, answers, honest

LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))"
"""No file may become longer: the write fails like on a full disk (EFBIG), for any user."""


def assert_one_line(ended: Ended, folder: Path) -> str:
    assert ended.code == 3, ended.err
    (error,) = errors(ended)
    assert str(folder) in error
    assert "Traceback" not in ended.err
    assert "Logging error" not in ended.err
    assert not list(folder.rglob(".*")), "nothing half-written stays"
    return error


@pytest.mark.parametrize("size", [500, 20_000])
def test_a_run_that_may_not_write_on_ends_with_what_to_do(
    server: MisbehavingServer, job: Job, size: int
) -> None:
    directory = job()
    scenario = directory.root.parent / "scenario.json"
    ended = end_of(start_command("run", "--scenario", scenario, before=LIMITED.format(size)))
    error = assert_one_line(ended, directory.root)
    assert "cannot be written (File too large); free space there and run the command again" in error
    assert document(directory.analysis)["status"] == "prepared"


def test_data_that_does_not_fit_is_not_prepared(
    server: MisbehavingServer, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    scenario = write_scenario(server.url)
    ended = end_of(
        start_command("prepare", "--scenario", scenario, "--mode", "text", before=LIMITED.format(30_000))
    )
    assert_one_line(ended, tmp_path)
    assert not list(tmp_path.rglob("*.manifest.json"))


@pytest.mark.parametrize("place", ["log", "result/runs"])
def test_a_folder_that_cannot_be_made_is_one_line(
    hitlab: Hitlab, server: MisbehavingServer, job: Job, place: str
) -> None:
    directory = job()
    folder = directory.root / place
    if folder.exists():
        folder.rename(directory.root / "elsewhere")
    folder.write_text("a file")
    ended = hitlab("run", "--scenario", directory.root.parent / "scenario.json")
    assert_one_line(ended, folder)
    assert not server.seen, "nothing was sent"


def test_what_ended_a_run_is_told_even_when_the_disk_then_refuses_measurement_json(
    hitlab: Hitlab, server: MisbehavingServer, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = job()

    def refuse(path: Path, _document: object) -> None:
        raise unwritable(path, OSError(errno.ENOSPC, "No space left on device"))

    async def unauthorized(server: MisbehavingServer, request: Request, response: Response) -> None:
        monkeypatch.setattr("runner.measurement_record.write_measurement", refuse)
        await answers(401, b'{"error":"no such key"}')(server, request, response)

    server.instead["/v1/models"] = unauthorized
    ended = hitlab("run", "--scenario", directory.root.parent / "scenario.json")
    assert ended.code == 4
    (error,) = errors(ended)
    assert "no such key" in error
    log = directory.log("run").read_text()
    assert "measurement.json: cannot be written (No space left on device)" in log


# A real file system of a few kilobytes needs root.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if os.getuid() != 0 or _mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", place) != 0:
        pytest.skip("only root may mount a small disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def _mount(*arguments: str | Path) -> int:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode


def prepared_on(
    hitlab: Hitlab, disk: Path, write_scenario: WriteScenario, url: str
) -> tuple[Path, RunDirectory]:
    scenario = write_scenario(
        url,
        run={"run_id": "job", "output_dir": str(disk / "out")},
        service={"poll_interval_seconds": 0.02},
        driver={"concurrency": 2},
    )
    ended = hitlab("prepare", "--scenario", scenario, "--mode", "text")
    assert ended.code == 0, ended.err
    return scenario, RunDirectory.of_manifest(Path(json.loads(ended.out)["manifest"]))


def test_a_disk_that_fills_up_under_load_keeps_whole_records_and_can_be_analyzed_later(
    hitlab: Hitlab, server: MisbehavingServer, write_scenario: WriteScenario, small_disk: Path
) -> None:
    scenario, directory = prepared_on(hitlab, small_disk, write_scenario, server.url)
    ballast = small_disk / "ballast"

    async def fills_the_disk(server: MisbehavingServer, request: Request, response: Response) -> None:
        with ballast.open("ab", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                ballast_size = ballast.stat().st_size
        assert ballast_size > 0
        await honest(server, request, response)

    server.formal[8] = fills_the_disk
    ended = hitlab("run", "--scenario", scenario)
    error = assert_one_line(ended, directory.root)
    assert "No space left on device" in error
    measurement = MeasurementDirectory(max(directory.runs.iterdir()))
    stream = measurement.requests_stream
    rows = sum(batch.num_rows for batch in read_stream(stream))

    ballast.unlink()
    ended = hitlab("analyze", "--manifest", directory.manifest, "--measurement", measurement.stamp)
    assert ended.code in (1, 130), ended.err
    assert not stream.exists()
    assert json.loads(ended.out)["actual"]["client"]["answered"] == rows
    assert hitlab("run", "--scenario", scenario).code == 0, "with room it works again"


def test_a_read_only_disk_is_one_line(
    hitlab: Hitlab, server: MisbehavingServer, write_scenario: WriteScenario, small_disk: Path
) -> None:
    scenario, directory = prepared_on(hitlab, small_disk, write_scenario, server.url)
    assert _mount("-o", "remount,ro", small_disk) == 0
    ended = hitlab("run", "--scenario", scenario)
    error = assert_one_line(ended, directory.root)
    assert "Read-only file system" in error
    assert "change run.output_dir" in error
    assert not server.seen
    ended = hitlab("prepare", "--scenario", scenario, "--mode", "text")
    assert_one_line(ended, small_disk)
