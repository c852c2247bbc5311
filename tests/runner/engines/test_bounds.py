"""What a scenario may not ask of the Docker host."""

import os
import socket
from pathlib import Path

import pytest

from contract.errors import ScenarioError
from runner.engines.vllm.bounds import Mount, allowed_roots, checked_devices, mounts_of_model, read_only_mount


def test_roots_are_the_variables_else_the_defaults(tmp_path: Path) -> None:
    models = {"MODELS_DIR": str(tmp_path / "models"), "DATA_DIR": ""}
    assert allowed_roots(models, [tmp_path]) == (tmp_path.resolve(), (tmp_path / "models").resolve())
    only = {**models, "HITLAB_ALLOWED_ROOTS": f"/srv/a{os.pathsep}/srv/b"}
    assert allowed_roots(only, [tmp_path]) == (Path("/srv/a"), Path("/srv/b"))


def test_mount_inside_and_outside(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "rooted"  # not under root, though its name begins so
    (root / "in").mkdir(parents=True)
    outside.mkdir()
    (root / "link").symlink_to(outside)
    roots = (root.resolve(),)
    assert read_only_mount(root / "in", roots, "f") == Mount(str(root / "in"), str(root / "in"))
    for path in (outside, root / "link", root / ".." / "rooted", Path("/"), root.parent):
        with pytest.raises(ScenarioError, match="may be mounted"):
            read_only_mount(path, roots, "engine.mounts")
    with pytest.raises(ScenarioError, match=r"engine.mounts: .* does not exist"):
        read_only_mount(root / "absent", roots, "engine.mounts")


def test_no_socket_and_no_loop(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as docker:
        docker.bind(str(tmp_path / "docker.sock"))
        with pytest.raises(ScenarioError, match="neither a file nor a folder"):
            read_only_mount(tmp_path / "docker.sock", (tmp_path.resolve(),), "engine.mounts")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ScenarioError, match="does not exist"):
        read_only_mount(tmp_path / "loop", (tmp_path.resolve(),), "engine.mounts")


def test_hub_cache_brings_its_blobs(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "1", tmp_path / "models--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "abc").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    mounts = mounts_of_model(snapshot, (tmp_path.resolve(),))
    assert [mount.target for mount in mounts] == [str(snapshot), str(blobs)]
    with pytest.raises(ScenarioError, match="blobs"):
        mounts_of_model(snapshot, (snapshot.resolve(),))


@pytest.mark.parametrize(
    "device", ["/dev/davinci0", "/dev/davinci_manager", "/dev/nvidia0", "/dev/dri/card0"]
)
def test_accelerators(device: str) -> None:
    assert checked_devices([device], {}) == (device,)


@pytest.mark.parametrize(
    "device", ["/dev/mem", "/dev/sda", "/dev/kmsg", "/dev/dri/../sda", "/dev/nvidia0/../mem"]
)
def test_other_devices(device: str) -> None:
    with pytest.raises(ScenarioError, match="HITLAB_ALLOWED_DEVICES"):
        checked_devices([device], {})


def test_devices_can_be_allowed() -> None:
    assert checked_devices(["/dev/vfio/1"], {"HITLAB_ALLOWED_DEVICES": "/dev/vfio/*"}) == ("/dev/vfio/1",)
