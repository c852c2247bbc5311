"""The Docker engine, and its errors as lines a user can act on."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from contract.errors import ServiceError
from contract.foreign_text import presentable
from contract.progress import Progress

API_TIMEOUT_SECONDS = 60

REFUSALS = (
    (
        (
            r"could not select device driver|nvidia-container-cli|unknown or invalid runtime|unresolvable CDI devices"
            r"|failed to discover GPU vendor"
        ),
        (
            "engine.gpus: Docker cannot hand on GPUs here ({0}); install the NVIDIA Container Toolkit, "
            "or use an image for the CPU with engine.gpus 0"
        ),
    ),
    (
        r"error gathering device information .*\"([^\"]+)\"",
        "engine.devices: {1} is not on the Docker host; remove it",
    ),
    (r"exec.*\bvllm\b.*not found", "engine.image: {image} has no `vllm` command; name an image of vLLM's"),
    (
        r"network \S+ not found",
        "HITLAB_NETWORK: Docker has no such network ({0}); start the stack (make up) or unset it",
    ),
    (
        r"bind source path does not exist: (\S+)",
        "{1} is not on the Docker host; mounts need the same path there",
    ),
    (
        r"setting rlimit|ulimit|rlimit type",
        (
            "the Docker host refuses the limits that engines need (memlock unlimited, stack 64 MiB: {0}); allow them for "
            "the daemon (rootless Docker: LimitMEMLOCK=infinity in its service), or use a Docker that runs as root"
        ),
    ),
    (
        r"no such container|marked for removal",
        "the engine's container is gone: it was removed (docker rm, make down)",
    ),
    (r"no space left on device", "the Docker host's disk is full ({0}); free space (docker system prune)"),
)


def docker_client() -> Any:
    """A connection to the Docker engine that the environment names. Raises ServiceError when there is none."""
    import docker
    from docker import from_env

    try:
        return from_env(timeout=API_TIMEOUT_SECONDS)
    except docker.errors.DockerException as error:
        raise no_docker(error) from error


def no_docker(error: Exception) -> ServiceError:
    text = presentable(str(error), 160)
    if "Permission denied" in text:
        return ServiceError(
            "engine.kind vllm: Docker's socket may not be opened by this user; join the group docker, or run as root"
        )
    return ServiceError(
        f"engine.kind vllm: no Docker engine answers ({text}); install or start Docker, "
        "or use --engine simulator or external"
    )


@contextmanager
def told_in_one_line(image: str) -> Iterator[None]:
    """Docker's refusals inside the block become ServiceErrors."""
    import docker
    import requests

    try:
        yield
    except docker.errors.APIError as error:
        raise ServiceError(refusal_line(str(error.explanation or error), image)) from error
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise no_docker(error) from error


def refusal_line(said: str, image: str) -> str:
    said = presentable(said, 2000)
    for pattern, line in REFUSALS:
        found = re.search(pattern, said, re.IGNORECASE)
        if found:
            return line.format(said[:160], *found.groups(), image=image)
    return f"engine.image {image}: Docker refuses to start it: {said[:300]}"


def present_image(client: Any, image: str, progress: Progress) -> Any:
    """The image; it is pulled only when it is not there. Raises ServiceError when it cannot be had."""
    import docker

    with told_in_one_line(image):
        try:
            return client.images.get(image)
        except docker.errors.ImageNotFound:
            return _pulled(client, image, progress)


def _pulled(client: Any, image: str, progress: Progress) -> Any:
    import docker

    try:
        _pull(client, image, progress)
        return client.images.get(image)
    except docker.errors.APIError as error:
        reason = presentable(str(error.explanation or error), 200)
        raise ServiceError(
            f"engine.image: {image} is not on the Docker host and cannot be pulled ({reason}); "
            "correct the name, or bring the image there (docker load, make images)"
        ) from error


def _pull(client: Any, image: str, progress: Progress) -> None:
    import docker

    repository, tag = docker.utils.parse_repository_tag(image)
    layers: dict[str, tuple[int, int]] = {}
    label = f"Pull {image}"
    progress(label, 0, None)
    for event in client.api.pull(repository, tag=tag or "latest", stream=True, decode=True):
        if "error" in event:
            raise docker.errors.APIError(str(event["error"]), explanation=str(event["error"]))
        detail = event.get("progressDetail") or {}
        if event.get("status") == "Downloading" and detail.get("total"):
            layers[event["id"]] = (int(detail["current"]), int(detail["total"]))
            progress(label, *(sum(column) for column in zip(*layers.values(), strict=True)))


def digest_of(image: Any) -> str | None:
    """What a registry knows the image by. None: it was built or loaded here and never pushed."""
    digests = image.attrs.get("RepoDigests") or []
    return str(digests[0]) if digests else None


def offers_gpus(client: Any) -> bool:
    return "nvidia" in (client.info().get("Runtimes") or {})
