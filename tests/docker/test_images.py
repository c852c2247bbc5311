"""Which images are built, from what, and by what name they are started: digests reach the build and Compose."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docker.conftest import REPOSITORY, StandIn

DIGEST = "@sha256:" + "0123456789abcdef" * 4
IMAGES = REPOSITORY / "docker/images"
VARIABLES = {
    "hitlab": "HITLAB_IMAGE",
    "vllm-cpu": "VLLM_CPU_IMAGE",
    "aisbench": "HITLAB_AISBENCH_IMAGE",
    "tiers": "HITLAB_TIERS_IMAGE",
}


def builds(stand_in: StandIn) -> list[str]:
    return [call for call in stand_in.calls() if call.startswith("build ")]


@pytest.mark.parametrize("name", VARIABLES)
def test_a_base_named_by_digest_is_what_is_built_from(stand_in: StandIn, name: str) -> None:
    base = f"registry.example/python{DIGEST}"
    done = stand_in.run(IMAGES, name, BASE_IMAGE=base, TORCH_INDEX="http://index.example/$(id)")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"sha256:[0-9a-f]{64}\n", done.stdout)
    assert all(f"--build-arg BASE_IMAGE={base} " in build for build in builds(stand_in))
    assert f"/{'hitlab-' if name in ('aisbench', 'tiers') else ''}{name}/Dockerfile " in builds(stand_in)[-1]
    if name != "hitlab":
        assert r"--build-arg TORCH_INDEX=http://index.example/\$\(id\) " in builds(stand_in)[-1]


@pytest.mark.parametrize(("name", "variable"), VARIABLES.items())
def test_an_image_named_by_digest_is_not_built(stand_in: StandIn, name: str, variable: str) -> None:
    image = f"registry.example/x{DIGEST}"
    settings = {variable: image} if name == "hitlab" else {variable: image, "HITLAB_IMAGE": image}
    done = stand_in.run(IMAGES, name, **settings)
    assert (done.returncode, done.stdout) == (0, f"{image}\n")
    assert builds(stand_in) == []


@pytest.mark.parametrize("name", ["aisbench", "tiers"])
def test_what_is_made_from_hitlabs_image_is_made_from_that_very_one(stand_in: StandIn, name: str) -> None:
    given = f"registry.example/hitlab{DIGEST}"
    assert stand_in.run(IMAGES, name, HITLAB_IMAGE=given).returncode == 0
    (build,) = builds(stand_in)
    assert f"--build-arg HITLAB_IMAGE={given} " in build
    (stand_in.folder / "calls").unlink()
    assert stand_in.run(IMAGES, name).returncode == 0
    (tag,) = (call.split() for call in stand_in.calls() if call.startswith("tag "))
    assert f"--build-arg HITLAB_IMAGE={tag[2]} " in builds(stand_in)[-1]
    assert tag[1].removeprefix("sha256:") in tag[2]
    assert any(call.startswith("rmi ") and tag[2] in call for call in stand_in.calls())


def test_all_steps_of_a_bench_start_the_image_that_was_built(stand_in: StandIn) -> None:
    """Its id, so that a build of another checkout in between changes nothing."""
    stand_in.does("needs", r"printf 'engine simulator\0driver aisbench\0'")
    used = stand_in.folder / "used"
    for step in ("inspect", "prepare", "validate", "run", "analyze"):
        own = (stand_in.folder / "commands" / step).read_text()
        stand_in.does(step, f'echo "{step} $HITLAB_IMAGE" >>{used}\n{own}')
    assert stand_in.run().returncode == 0
    images = dict(line.split() for line in used.read_text().splitlines())
    assert len({images[step] for step in images if step != "run"}) == 1
    assert images["run"] != images["prepare"]
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", image) for image in images.values())
    given = f"registry.example/hitlab{DIGEST}"
    used.unlink()
    assert stand_in.run(HITLAB_IMAGE=given, DRIVER="native").returncode == 0
    assert {line.split()[1] for line in used.read_text().splitlines()} == {given}


def test_a_build_that_fails_ends_the_bench(stand_in: StandIn) -> None:
    stand_in.does("build", "echo ERROR: no space >&2; exit 1")
    done = stand_in.run()
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ERROR: no space"
    assert stand_in.steps() == []


def service(compose: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = compose["services"][name]
    return found


def test_every_image_of_the_stack_is_a_variable() -> None:
    compose = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())
    for name in compose["services"]:
        assert re.fullmatch(r"\$\{[A-Z_]+_IMAGE:-[^}]+\}", service(compose, name)["image"]), name


def test_every_base_is_an_argument() -> None:
    """And what an image is built with is pinned with hashes: no build fetches anything else."""
    for path in (REPOSITORY / "images").glob("*/Dockerfile"):
        text = path.read_text()
        bases = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) - {"scratch"}
        assert bases <= {"${BASE_IMAGE}", "${HITLAB_IMAGE}"}, path
        for install in re.findall(r"pip install (?:[^&\n]|\\\n)+", text):
            assert "--require-hashes" in install or "--no-build-isolation" in install, f"{path}: {install}"


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "requirements").glob("*.txt")), ids=lambda path: path.name
)
def test_every_pin_has_hashes(path: Path) -> None:
    lines = path.read_text().replace("\\\n", " ").splitlines()
    pins = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert pins
    assert all("==" in pin and "--hash=sha256:" in pin for pin in pins)
