"""Settings for all tests."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

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
