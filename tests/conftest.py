"""Settings for all tests."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

from contract.errors import HitLabError
from contract.measurement import Check, Finding
from contract.scenario.problems import ScenarioProblems
from tests.finished_lines import unfinished

# A deadline measures the machine, not the code.
settings.register_profile("hitlab", deadline=None, max_examples=60)
settings.load_profile("hitlab")

# A shell starts background jobs with SIGINT ignored, and children inherit that; the commands under test are not in the
# background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def runtime_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Locks of engines go there, not to the user's own directory."""
    folder = tmp_path_factory.mktemp("runtime")
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    return folder


@pytest.fixture(autouse=True)
def finished_lines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """No line for the user, whichever test makes it, has a hole where a value should be.

    Texts that a property test draws may well look as if they had one.
    """
    found: list[str] = []
    originals = {kind: kind.__init__ for kind in (HitLabError, Finding, Check)}

    def watched(kind: type[Any]) -> Any:
        def made(self: Any, *values: Any, **named: Any) -> None:
            foreign = isinstance(self, ScenarioProblems)  # made of what a file has
            texts = () if foreign else (*values, named.get("message"), named.get("detail"))
            found.extend(text for text in texts if isinstance(text, str) and unfinished(text))
            originals[kind](self, *values, **named)

        return made

    for kind in originals:
        monkeypatch.setattr(kind, "__init__", watched(kind))
    yield found
    drawn = is_hypothesis_test(getattr(request.node, "function", None))
    assert drawn or not found, f"lines with a hole: {found}"
