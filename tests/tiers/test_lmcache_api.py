"""Which LMCache is taken, and where a bench goes on."""

import sys
from pathlib import Path

import pytest

from contract.errors import ServiceError
from tiers import execution, lmcache_api


@pytest.mark.parametrize("version", ["0.5.6", "0.5.6+cpu"])
def test_known_versions_have_a_module(version: str) -> None:
    assert lmcache_api.module_name(version) == "tiers.lmcache_api.v0_5_6"


@pytest.mark.parametrize(
    "version", ["0.5.5", "0.5.7", "0.5.7rc3.dev0", "0.5.6rc1", "0.6", "1.0.0", "", "unknown", "0.5.6.1"]
)
def test_other_versions_are_refused_with_the_known_ones(version: str) -> None:
    with pytest.raises(ServiceError, match=r"not known here.*install 0\.5\.6"):
        lmcache_api.module_name(version)


def test_without_lmcache_one_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lmcache_api, "installed_version", lambda: None)
    monkeypatch.setattr(execution, "installed_version", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(execution.VARIABLE, raising=False)
    with pytest.raises(ServiceError, match="make tiers"):
        lmcache_api.load()
    with pytest.raises(ServiceError, match="run make tiers once, or use the image hitlab-tiers"):
        execution.ensure_lmcache(["bench", "l2"])


def test_the_command_goes_on_in_the_environment_with_this_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "hitlab" / "tiers" / "current" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    called: list[list[str]] = []
    monkeypatch.setattr(execution, "installed_version", lambda: None)
    monkeypatch.setattr(execution.os, "execv", lambda _program, arguments: called.append(arguments))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(execution.VARIABLE, raising=False)
    execution.ensure_lmcache(["bench", "l2", "--rounds", "3"])
    assert called[0][0] == str(python)
    root = Path(called[0][called[0].index("-c") + 2])
    assert (root / "tiers" / "execution.py").is_file()
    assert called[0][-4:] == ["bench", "l2", "--rounds", "3"]


def test_another_python_can_be_named_but_not_this_one_without_lmcache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execution, "installed_version", lambda: None)
    monkeypatch.setenv(execution.VARIABLE, sys.executable)
    with pytest.raises(ServiceError, match="holds no LMCache"):
        execution.ensure_lmcache([])
