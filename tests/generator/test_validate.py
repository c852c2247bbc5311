"""validate accepts what prepare wrote and refuses everything else, whatever byte it is that differs."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.errors import ArtifactError, ExitCode
from contract.run_directory import RunDirectory
from generator.inspect import inspect
from generator.prepare import prepare
from generator.validate import validate
from tests.generator.conftest import small_scenario


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    path = tmp_path_factory.mktemp("validate") / "scenario.json"
    path.write_text(json.dumps(small_scenario(output={"output_key": "max_tokens"})))
    return RunDirectory.of_manifest(Path(prepare(path)["manifest"]))


@pytest.fixture
def unchanged(directory: RunDirectory) -> Iterator[RunDirectory]:
    """The directory, put back as it was afterwards."""
    files = {path: path.read_bytes() for path in directory.result.iterdir()}
    yield directory
    for path, content in files.items():
        path.write_bytes(content)


def test_accepts_what_prepare_wrote(directory: RunDirectory) -> None:
    assert validate(directory.manifest) == {"ok": True, "rows": 8, "run_id": directory.run_id}
    assert directory.log("validate").is_file()


def test_accepts_a_copied_directory(directory: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(directory.root, tmp_path / "copy")
    copied = RunDirectory(tmp_path / "copy", directory.run_id)
    assert validate(copied.manifest)["ok"] is True


def refused(directory: RunDirectory) -> str:
    with pytest.raises(ArtifactError) as raised:
        validate(directory.manifest)
    assert raised.value.exit_code == ExitCode.ARTIFACTS
    message = str(raised.value)
    assert len(message.splitlines()) == 1
    assert str(directory.result) in message
    return message


KINDS = ("full", "requests", "token_ids", "manifest")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(KINDS), place=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255))
def test_refuses_every_changed_byte(unchanged: RunDirectory, kind: str, place: float, bits: int) -> None:
    path: Path = getattr(unchanged, kind)
    content = path.read_bytes()
    changed = bytearray(content)
    changed[int(place * len(changed))] ^= bits
    path.write_bytes(changed)
    try:
        refused(unchanged)
    finally:
        path.write_bytes(content)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(KINDS), place=st.floats(0, 1, exclude_max=True), insert=st.booleans())
def test_refuses_every_cut_and_insertion(
    unchanged: RunDirectory, kind: str, place: float, insert: bool
) -> None:
    path: Path = getattr(unchanged, kind)
    content = path.read_bytes()
    at = int(place * len(content))
    path.write_bytes(content[:at] + b" " + content[at:] if insert else content[:at])
    try:
        refused(unchanged)
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("kind", ["full", "requests"])
@pytest.mark.parametrize("rows", [(0, 1), (2, 6)])
def test_refuses_swapped_rows(unchanged: RunDirectory, kind: str, rows: tuple[int, int]) -> None:
    path: Path = getattr(unchanged, kind)
    lines = path.read_bytes().splitlines(keepends=True)
    one, two = rows
    lines[one], lines[two] = lines[two], lines[one]
    path.write_bytes(b"".join(lines))
    message = refused(unchanged)
    assert f":{one + 1}: " in message, "the first row that is out of place is named"


def test_refuses_rows_swapped_in_both_files(unchanged: RunDirectory) -> None:
    for path in (unchanged.full, unchanged.requests):
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
    assert "rows were moved" in refused(unchanged)


@pytest.mark.parametrize("kind", ["full", "requests"])
def test_refuses_missing_rows(unchanged: RunDirectory, kind: str) -> None:
    path: Path = getattr(unchanged, kind)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert "ends after 7 rows; 8 were written" in refused(unchanged)


@pytest.mark.parametrize("kinds", [["full"], ["requests"], ["full", "requests"]])
def test_names_the_row_that_was_added_and_its_file(unchanged: RunDirectory, kinds: list[str]) -> None:
    for kind in kinds:
        path: Path = getattr(unchanged, kind)
        content = path.read_bytes()
        path.write_bytes(content + content.splitlines(keepends=True)[-1])
    line = refused(unchanged)
    assert line.startswith(f"{getattr(unchanged, kinds[0])}:9: 8 rows were written, this one has been added")


def test_names_both_files_when_both_lack_a_row(unchanged: RunDirectory) -> None:
    for path in (unchanged.full, unchanged.requests):
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert f"{unchanged.full} and {unchanged.requests.name}: end after 7 rows" in refused(unchanged)


@pytest.mark.parametrize("kind", ["full", "requests", "token_ids"])
def test_refuses_missing_files(unchanged: RunDirectory, kind: str) -> None:
    getattr(unchanged, kind).unlink()
    assert "run prepare again" in refused(unchanged)


def test_refuses_a_manifest_written_in_another_form(unchanged: RunDirectory) -> None:
    document = json.loads(unchanged.manifest.read_text())
    unchanged.manifest.write_text(json.dumps(document))
    assert "was changed after it was written" in refused(unchanged)


def test_refuses_a_preview(write_scenario: Callable[..., Path]) -> None:
    with pytest.raises(ArtifactError, match="hitlab prepare --mode text"):
        validate(Path(inspect(write_scenario())["manifest"]))


def test_refuses_what_is_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"a manifest's name ends in .manifest.json"):
        validate(tmp_path / "x.json")
    with pytest.raises(ArtifactError, match="no such manifest"):
        validate(tmp_path / "none.manifest.json")
