"""What a scenario may ask of the Docker host: files under allowed roots, and accelerators among the devices.

Docker's socket is root on the host, and a scenario may come from anybody. So a mount is checked where it really
leads, and nothing but a path to read can be asked for: no privileged mode, no other container's or the host's
namespaces have any field at all.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from contract.errors import ScenarioError

ROOTS_VARIABLE = "HITLAB_ALLOWED_ROOTS"
FOLDER_VARIABLES = ("MODELS_DIR", "DATA_DIR", "HF_HOME")
DEVICES_VARIABLE = "HITLAB_ALLOWED_DEVICES"
ACCELERATORS = (
    "/dev/davinci*",
    "/dev/devmm_svm",
    "/dev/hisi_hdc",
    "/dev/nvidia*",
    "/dev/dri/*",
    "/dev/kfd",
    "/dev/accel*",
    "/dev/infiniband/*",
)
"""Ascend, NVIDIA, AMD and Intel, others that use the kernel's accel class, and RDMA."""


@dataclass(frozen=True)
class Mount:
    """A folder or file of the host, where the scenario says it is. `source` has no symbolic link in it."""

    source: str
    target: str
    read_only: bool = True


def allowed_roots(environment: Mapping[str, str], defaults: Iterable[Path]) -> tuple[Path, ...]:
    """HITLAB_ALLOWED_ROOTS (separated as in PATH); without it `defaults`, MODELS_DIR, DATA_DIR, HF_HOME."""
    named = environment.get(ROOTS_VARIABLE)
    if named:
        roots = [Path(part) for part in named.split(os.pathsep) if part]
    else:
        roots = [*defaults, *(Path(environment[name]) for name in FOLDER_VARIABLES if environment.get(name))]
    return tuple(dict.fromkeys(root.resolve() for root in roots))


def read_only_mount(path: Path, roots: tuple[Path, ...], field: str) -> Mount:
    """Raises ScenarioError: `path` is not there, leads out of the roots, or is neither a file nor a folder."""
    try:
        source = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise ScenarioError(f"{field}: {path} does not exist; correct the path") from error
    if not any(source.is_relative_to(root) for root in roots):
        leads = "" if source == path else f" leads to {source}, which"
        raise ScenarioError(
            f"{field}: {path}{leads} is under no folder that may be mounted "
            f"({', '.join(map(str, roots)) or 'none'}); set {ROOTS_VARIABLE} or MODELS_DIR"
        )
    if not (source.is_dir() or source.is_file()):
        raise ScenarioError(f"{field}: {path} is neither a file nor a folder")
    return Mount(str(source), str(path))


def mounts_of_model(directory: Path, roots: tuple[Path, ...]) -> tuple[Mount, ...]:
    """The model's directory, and the folders that its links lead to: a hub's cache keeps the files beside it."""
    mount = read_only_mount(directory, roots, "tokenizer.path")
    return (
        mount,
        *(
            read_only_mount(folder, roots, "tokenizer.path")
            for folder in sorted(set(_linked_folders(directory)))
        ),
    )


def _linked_folders(directory: Path) -> Iterator[Path]:
    """Folders of the files that links in `directory` name, as the links name them."""
    for entry in directory.iterdir():
        if entry.is_symlink():
            named = Path(os.path.normpath(directory / entry.readlink())).parent
            if not named.is_relative_to(directory):
                yield named


def checked_devices(devices: Iterable[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Raises ScenarioError for a device that is no accelerator and not named by HITLAB_ALLOWED_DEVICES."""
    named = environment.get(DEVICES_VARIABLE, "").split(os.pathsep)
    patterns = (*ACCELERATORS, *(pattern for pattern in named if pattern))
    for device in devices:
        if ".." in Path(device).parts or not any(fnmatchcase(device, pattern) for pattern in patterns):
            raise ScenarioError(
                f"engine.devices: {device} is not known as an accelerator; {DEVICES_VARIABLE} can allow it"
            )
    return tuple(devices)
