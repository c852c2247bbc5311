"""Only regular files are read, everywhere, and nothing waits for one that is none."""

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from analyzer.scrapes import load_scrape
from contract.documents import file_sha256, read_document
from contract.errors import ArtifactError, ScenarioError
from contract.files import expanded, open_file, read_file, read_text, regular
from contract.rows import read_rows
from contract.scenario import load_scenario
from contract.scenario.length_files import INPUT_COLUMNS, read_lengths
from contract.streams import read_stream
from contract.token_ids import read_token_ids
from prompts.corpus import load_corpus

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("analyzer", "cachemodel", "contract", "enginemetrics", "generator", "hitlab", "prompts", "runner")


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("read", [open_file, read_file, read_text, regular])
def test_a_pipe_is_not_waited_for(read: Callable[[Path], object], pipe: Path) -> None:
    with pytest.raises(OSError, match="no regular file but a pipe or a device"):
        read(pipe)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_a_device_is_not_read(path: str) -> None:
    with pytest.raises(OSError, match=r"no regular file but a pipe or a device|No such"):
        open_file(Path(path))


def test_a_socket_and_a_folder_are_not_read(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError):
            open_file(tmp_path / "socket")
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "n" * 300])
def test_a_name_that_no_file_has_is_an_os_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(OSError):
        open_file(tmp_path / name)


def test_a_link_to_a_regular_file_is_followed_and_a_limit_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10)
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "link", at_most=10) == b"x" * 10
    with pytest.raises(OSError, match="larger than"):
        read_file(tmp_path / "link", at_most=9)


def test_an_unknown_user_is_left_as_written() -> None:
    assert expanded("~no-such-user/x") == Path("~no-such-user/x")
    assert expanded("~/x") == Path.home() / "x"


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (load_scenario, ScenarioError),
        (lambda path: load_corpus(path, "question"), ScenarioError),
        (lambda path: read_lengths(path, INPUT_COLUMNS), ScenarioError),
        (lambda path: load_scrape(path, {}), ArtifactError),
        (lambda path: read_document(path, "analysis"), ArtifactError),
        (lambda path: list(read_rows(path)), ArtifactError),
        (lambda path: list(read_token_ids(path)), ArtifactError),
        (file_sha256, OSError),
        (lambda path: list(read_stream(path)), OSError),
    ],
)
def test_readers_refuse_a_pipe_at_once(
    read: Callable[[Path], object], error: type[Exception], pipe: Path
) -> None:
    with pytest.raises(error, match="no regular file"):
        read(pipe)


READS = re.compile(
    r"""\.read_(?:text|bytes)\( | \.open\((?:"rb?")?\) | \.open\(encoding | (?<![._\w])(?<!def\ )open\(
    | \b(?:memory_map|ParquetFile|read_table)\((?!.*regular\()""",
    re.VERBOSE,
)
OF_OUR_OWN = {
    "analyzer/bench/page.py": "a style sheet that ships with it",
    "analyzer/report_page.py": "a style sheet that ships with it",
    "contract/files.py": "the reader itself",
    "hitlab/streams.py": "the standard streams",
    "prompts/words.py": "the built-in corpus",
    "runner/drivers/aisbench/attempts.py": "what the process it started writes",
    "runner/drivers/aisbench/load.py": "what the process it started writes",
    "runner/drivers/aisbench/results.py": "copies that it has made",
}


def test_every_reader_goes_through_the_one_that_refuses_pipes() -> None:
    found = {
        str(path.relative_to(REPOSITORY))
        for package in PACKAGES
        for path in sorted((REPOSITORY / package).rglob("*.py"))
        if any(
            READS.search(line) for line in path.read_text().splitlines() if not line.lstrip().startswith("#")
        )
    }
    assert found <= set(OF_OUR_OWN), "use contract.files: open_file, read_file, read_text or regular"
