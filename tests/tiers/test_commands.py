"""The commands as a user meets them, on adapters and servers in memory."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hitlab.main import main
from tests.tiers.memory_l2 import MemoryL2
from tests.tiers.memory_server import CHUNK, MemoryServer
from tiers import execution, lmcache_api
from tiers.server import connect
from tiers.server.connect import Peer

FS = '{"type":"fs","base_path":"/nowhere"}'


class Api(SimpleNamespace):
    """What `lmcache_api.load` gives, without LMCache. Its adapters print, as some do."""

    VERSION = "0.5.6"

    def __init__(self) -> None:
        self.backend = MemoryL2()
        self.server = MemoryServer()

    def open_l2(self, spec: dict[str, Any], arena: Any, align_bytes: int) -> MemoryL2:
        os.write(1, b"an adapter prints\n")
        return self.backend

    def cuda_available(self) -> bool:
        return False

    def Connection(self, _url: str) -> Any:  # noqa: N802 - a class there
        return SimpleNamespace(chunk_size=lambda _timeout: CHUNK, close=lambda: None)

    def Client(  # noqa: N802 - a class there
        self, _url: str, layout: Any, *, model: str, ranks: int, first_instance: int, **_rest: Any
    ) -> Any:
        return self.server.client(layout, model=model, first_instance=first_instance, ranks=ranks)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    made = Api()
    monkeypatch.setattr(lmcache_api, "load", lambda: made)
    monkeypatch.setattr(execution, "ensure_lmcache", lambda _arguments: None)
    monkeypatch.setattr(connect, "require_peer", lambda *_: Peer(None, "0.5.6", None, ()))
    return made


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ending:
        main(["bench", *map(str, arguments)])
    return int(ending.value.code or 0)


SERVER = (
    "server",
    "--mode",
    "cpu",
    "--kvcache-shape-spec",
    "(2,32,4,2,8):float16:3",
    "--num-tokens",
    "64",
    "--interval",
    "0",
)


def test_json_is_alone_on_stdout_whatever_adapters_print(
    api: Api, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = (
        "--output",
        tmp_path / "o.json",
        "--samples",
        tmp_path / "s.parquet",
        "--report",
        tmp_path / "r.html",
    )
    assert run("l2", "--l2-adapter", FS, "--num-keys", "2", "--format", "json", *files) == 0
    printed = capfd.readouterr()
    assert printed.out.encode() == (tmp_path / "o.json").read_bytes()
    assert json.loads(printed.out)["kind"] == "l2"
    assert "an adapter prints" in printed.err
    assert "[Store] Round 1" in printed.err
    assert all((tmp_path / name).stat().st_size for name in ("s.parquet", "r.html"))


@pytest.mark.parametrize("form", ["json", "terminal"])
@pytest.mark.parametrize("arguments", [("l2", "--l2-adapter", FS), (*SERVER, "--end", "1")])
def test_what_is_printed_and_what_is_saved_are_the_same_bytes(
    api: Api, capfd: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], form: str
) -> None:
    output = tmp_path / "result"
    assert run(*arguments, "--format", form, "--output", output) == 0
    assert capfd.readouterr().out.encode() == output.read_bytes()


def test_options_of_the_original_are_there(api: Api) -> None:
    assert run("l2", "--l2-adapter", FS, "--no-l1-use-hugepages", "-q") == 0
    assert run(*SERVER, "--end", "1", "--block-allocation", "random", "-q") == 0
    assert run(*SERVER, "--end", "1", "--block-allocation", "upwards") == 2
    assert run(*SERVER, "--end", "1", "--tp-size", "2", "--use-mla", "-q") == 0


@pytest.mark.parametrize("arguments", [("l2", "--l2-adapter", FS), (*SERVER, "--end", "2")])
def test_quiet_silences_progress_and_not_the_result(
    api: Api, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert run(*arguments, "-q") == 0
    printed = capfd.readouterr()
    assert "Verdict" in printed.out
    assert printed.err.replace("an adapter prints\n", "") == ""


def test_a_fresh_run_has_its_own_seed_and_only_has_a_fixed_one(
    api: Api, capfd: pytest.CaptureFixture[str]
) -> None:
    seeds = []
    for extra in ([], [], ["--only", "store"], ["--clean"]):
        assert run("l2", "--l2-adapter", FS, "--format", "json", "-q", *extra) == 0
        seeds.append(json.loads(capfd.readouterr().out)["config"]["seed"])
    assert seeds[0] != seeds[1]
    assert seeds[2:] == [0, 0]


def test_failures_are_exit_code_1_with_the_whole_result(api: Api, capfd: pytest.CaptureFixture[str]) -> None:
    api.backend.fails_stores = True
    assert run("l2", "--l2-adapter", FS) == 1
    assert "FAILED: operations" in capfd.readouterr().out
    api.server.fails.add("retrieve")
    assert run(*SERVER, "--end", "1") == 1
    assert "ERROR: RETRIEVE failed" in capfd.readouterr().err


@pytest.mark.parametrize("arguments", [("l2", "--l2-adapter", FS), SERVER])
def test_self_tests_say_what_was_noticed(
    api: Api, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert run(*arguments, "--self-test", "--timeout" if arguments is SERVER else "--task-timeout", "1") == 0
    assert "as it should be: FAILED" in capfd.readouterr().out


def test_a_full_disk_takes_the_file_and_not_the_result(api: Api, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("l2", "--l2-adapter", FS, "--samples", "/proc/nowhere/s.parquet") == 3
    printed = capfd.readouterr()
    assert "Verdict" in printed.out
    assert "/proc/nowhere/s.parquet" in printed.err.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("l2", "--l2-adapter", FS, "--format", "xml"),
        ("l2", "--l2-adapter", FS, "--page-cache", "purge"),
        ("l2", "--l2-adapter", FS, "--self-test", "--clean"),
        ("l2", "--l2-adapter", FS, "--flamegraph", "maybe"),
        ("server", "--flamegraph", "on"),
        ("server", "--mode", "tpu"),
        ("server", "--kvcache-shape-spec", "(2,0)"),
        ("server", "--self-test", "--compare", __file__),
    ],
)
def test_bad_options_are_exit_code_2_or_3_and_nothing_is_printed(
    api: Api, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert run(*arguments) in (2, 3)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("ERROR: ")


def test_gpu_without_a_gpu(api: Api, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("server", "--end", "1") == 4
    assert "add --mode cpu" in capfd.readouterr().err
