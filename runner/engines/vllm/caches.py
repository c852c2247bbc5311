"""What engines keep from one run to the next: downloaded models, and what they compiled. Named volumes of Docker's.

An engine that downloads or compiles anew in every run costs more than the run. What was compiled belongs to one image;
downloads belong to all.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runner.engines.vllm.configuration import Configuration, Volume

FOLDER = "/var/cache/hitlab"
HUB = f"{FOLDER}/hub"
COMPILED = f"{FOLDER}/compiled"
PREFIX_VARIABLE = "HITLAB_CACHE_PREFIX"
IMAGE_LABEL = "com.hitlab.cache-folders"
"""On images whose user is not root: these folders are there and are this user's."""
CACHE_LABEL = "com.hitlab.cache"
USER_LABEL = "com.hitlab.user"
ROOT = ("", "0", "root", "0:0", "root:root")
DIGITS = 12


def with_caches(wanted: Configuration, image: Any, environment: Mapping[str, str]) -> Configuration:
    """The configuration with volumes for what it may download and compile, and the variables that lead there.

    An image that runs as another user than root gets them only where it says that it has room for them: a new volume is
    root's. A hub cache that the scenario names takes the place of the volume.
    """
    user = str((image.attrs.get("Config") or {}).get("User") or "")
    if user not in ROOT and (image.labels or {}).get(IMAGE_LABEL) != FOLDER:
        return _with_hub(wanted, ())
    compiled = _volume("compiled", COMPILED, environment, _identity(image))
    cached = replace(
        wanted,
        volumes=(compiled,),
        environment=wanted.environment
        | {
            "VLLM_CACHE_ROOT": f"{COMPILED}/vllm",
            "TRITON_CACHE_DIR": f"{COMPILED}/triton",
            "FLASHINFER_WORKSPACE_BASE": f"{COMPILED}/flashinfer",
        },
    )
    return _with_hub(cached, (_volume("hub", HUB, environment),))


def _with_hub(wanted: Configuration, volumes: tuple[Volume, ...]) -> Configuration:
    """Where a model of the hub comes from; nothing for one that lies on the host or in the image."""
    if not wanted.of_hub:
        return wanted
    if wanted.hf_home is not None:
        offline = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": "/tmp/hf-modules"}  # noqa: S108 - inside the container
        return replace(
            wanted,
            mounts=(*wanted.mounts, replace(wanted.hf_home, target=HUB)),
            environment=wanted.environment | {"HF_HOME": HUB} | (offline if wanted.hf_home.read_only else {}),
        )
    if not volumes:
        return wanted
    return replace(
        wanted,
        volumes=(*wanted.volumes, *volumes),
        environment=wanted.environment | {"HF_HOME": HUB},
    )


def _volume(kind: str, target: str, environment: Mapping[str, str], of: str = "") -> Volume:
    prefix = environment.get(PREFIX_VARIABLE) or f"hitlab-{os.getuid()}"
    labels = ((CACHE_LABEL, kind), (USER_LABEL, str(os.getuid())))
    return Volume("-".join(filter(None, (prefix, kind, of))), target, labels)


def _identity(image: Any) -> str:
    """Of an image's content: what a registry knows it by, else its own id."""
    digests = image.attrs.get("RepoDigests") or [image.id]
    return str(digests[0]).rpartition(":")[2][:DIGITS]
