"""One run at a time on an engine."""

import multiprocessing
from pathlib import Path

import pytest

from contract.errors import ArtifactError, ServiceError
from runner.engines.engine import Engine
from runner.lock import engine_lock


def engine(url: str) -> Engine:
    return Engine("external", f"{url}/v1/completions", (f"{url}/metrics",), None, "m", 1)


def test_the_second_comer_is_told_who_holds_it(tmp_path: Path) -> None:
    with engine_lock(engine("http://a:1"), tmp_path, "first"):
        with pytest.raises(ServiceError, match=r"run first .* is using it since"):
            engine_lock(engine("http://a:1"), tmp_path, "second").__enter__()
        with engine_lock(engine("http://b:1"), tmp_path, "other engine"):
            pass
    with engine_lock(engine("http://a:1"), tmp_path, "third"):
        pass


def _hold_and_die(folder: Path) -> None:
    import os

    engine_lock(engine("http://a:1"), folder, "dead").__enter__()
    os._exit(9)


def test_a_dead_holder_holds_nothing(tmp_path: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=_hold_and_die, args=(tmp_path,))
    child.start()
    child.join()
    with engine_lock(engine("http://a:1"), tmp_path, "next"):
        pass


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match=r"change run.output_dir"):
        engine_lock(engine("http://a:1"), tmp_path / "file", "x").__enter__()
