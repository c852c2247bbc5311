"""The container itself: made, started, asked, and removed, whatever happened."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from contract.documents import whole_file
from contract.foreign_text import visible
from contract.redaction import Redactor
from runner.engines.vllm.configuration import PORT, Configuration
from runner.engines.vllm.diagnosis import ANSI
from runner.engines.vllm.docker_host import offers_gpus, told_in_one_line

HOST = "127.0.0.1"
STOP_SECONDS = 5
STACK_BYTES = 64 << 20
LOG_END_LINES = 40
LOG_SIZE = "50m"
LOG_FILES = "2"


def create_container(
    client: Any,
    configuration: Configuration,
    command: tuple[str, ...],
    *,
    name: str,
    labels: dict[str, str],
) -> Any:
    """A container that has not been started. Raises ServiceError with Docker's reason."""
    import docker

    reach: dict[str, Any] = (
        {"network": configuration.network}
        if configuration.network
        # The runner is on the host itself: a free port of the loopback, for as long as the engine lives.
        else {"ports": {f"{PORT}/tcp": (HOST, None)}}
    )
    with told_in_one_line(configuration.image):
        gpus = _device_requests(client, configuration)
        return client.containers.create(
            configuration.image,
            list(command),
            entrypoint=list(configuration.entrypoint),
            name=name,
            labels=labels,
            environment=configuration.environment,
            mounts=[
                *(
                    docker.types.Mount(mount.target, mount.source, type="bind", read_only=mount.read_only)
                    for mount in configuration.mounts
                ),
                *(
                    docker.types.Mount(volume.target, volume.name, type="volume", labels=dict(volume.labels))
                    for volume in configuration.volumes
                ),
            ],
            devices=[f"{device}:{device}:rw" for device in configuration.devices],
            device_requests=gpus,
            shm_size=configuration.shm_size,
            ulimits=_limits() if gpus or configuration.devices else [],
            # Of Docker's capabilities only this one: an image that runs as root reads a model whoever owns it.
            cap_drop=["ALL"],
            cap_add=["DAC_OVERRIDE"],
            security_opt=["no-new-privileges:true"],
            log_config=docker.types.LogConfig(
                type=docker.types.LogConfig.types.JSON,
                config={"max-size": LOG_SIZE, "max-file": LOG_FILES},
            ),
            stdin_open=bool(configuration.env_from),
            detach=True,
            **reach,
        )


def _limits() -> list[Any]:
    """What NVIDIA advises for containers: NCCL and RDMA pin memory, and their threads have large stacks.

    For accelerators alone: an engine on the CPU pins nothing, and not every Docker host may raise them.
    """
    import docker

    return [
        docker.types.Ulimit(name="memlock", soft=-1, hard=-1),
        docker.types.Ulimit(name="stack", soft=STACK_BYTES, hard=STACK_BYTES),
    ]


def _device_requests(client: Any, configuration: Configuration) -> list[Any]:
    import docker

    gpus = configuration.gpus
    if gpus is None:
        gpus = "all" if offers_gpus(client) else 0
    if gpus == 0 or gpus == ():
        return []
    chosen: dict[str, Any] = {"count": -1 if gpus == "all" else gpus}
    if isinstance(gpus, tuple):
        chosen = {"device_ids": list(gpus)}
    return [docker.types.DeviceRequest(capabilities=[["gpu"]], **chosen)]


def start_container(container: Any, image: str, secrets: dict[str, str]) -> None:
    """Start it and hand the secrets over on its standard input. Raises ServiceError with Docker's reason."""
    with told_in_one_line(image):
        if not secrets:
            container.start()
            return
        stream = container.attach_socket(params={"stdin": 1, "stream": 1})
        try:
            container.start()
            text = "".join(f"{name}={value}\n" for name, value in secrets.items()) + "\n"
            getattr(stream, "_sock", stream).sendall(
                text.encode()
            )  # the SDK wraps the socket for reading alone
        finally:
            stream.close()


def address_of(container: Any, network: str | None) -> str:
    """`http://host:port` as the runner reaches it."""
    if network:
        return f"http://{container.name}:{PORT}"
    container.reload()
    bindings = container.attrs["NetworkSettings"]["Ports"][f"{PORT}/tcp"]
    return f"http://{HOST}:{bindings[0]['HostPort']}"


def log_end(container: Any) -> str:
    """The last lines that the container has said."""
    content: bytes = container.logs(stdout=True, stderr=True, tail=LOG_END_LINES)
    return content.decode("utf-8", errors="replace")


def log_text(container: Any, since: float | None = None) -> str:
    """All the container has said; `since` in seconds of the epoch."""
    options = {} if since is None else {"since": since}
    content: bytes = container.logs(stdout=True, stderr=True, **options)
    return content.decode("utf-8", errors="replace")


def save_log(container: Any, path: Path, redact: Redactor, since: float | None = None) -> None:
    """Raises ArtifactError when it cannot be written."""
    text = visible(redact(ANSI.sub("", log_text(container, since))))
    with whole_file(path) as file:
        file.write(text.encode())


def remove_container(container: Any) -> None:
    """Stop it and remove it with its anonymous volumes; no matter whether somebody else does so as well."""
    import docker

    with suppress(
        docker.errors.APIError
    ):  # does it not run, or not end: the next call takes it away in any case
        container.stop(timeout=STOP_SECONDS)
    try:
        container.remove(force=True, v=True)
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        if error.status_code != 409:  # its removal is on its way
            raise
