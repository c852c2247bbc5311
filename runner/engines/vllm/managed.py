"""The engine of a run in its container: from the scenario to a healthy engine, and back to nothing."""

import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from contract.command_log import command_log
from contract.errors import ArtifactError, ServiceError
from contract.foreign_text import presentable
from contract.http_call import CallError, call
from contract.measurement import ContainerRecord
from contract.progress import Progress, silent
from contract.redaction import Redactor, learn, service_api_key
from contract.run_directory import RunDirectory
from contract.scenario import Scenario
from runner.engines.engine import Engine
from runner.engines.vllm.caches import with_caches
from runner.engines.vllm.configuration import (
    DEMO_MODEL_LABEL,
    Configuration,
    configuration,
    secrets_of,
)
from runner.engines.vllm.container import (
    address_of,
    create_container,
    log_end,
    log_text,
    remove_container,
    save_log,
    start_container,
)
from runner.engines.vllm.diagnosis import reason_of, tail
from runner.engines.vllm.docker_host import digest_of, docker_client, present_image, told_in_one_line
from runner.engines.vllm.ownership import (
    CONFIGURATION,
    KEEP,
    MANAGED,
    RUN,
    Claim,
    claim_of,
    new_claim,
    owner_labels,
)
from runner.engines.vllm.startup import startup_step
from runner.undisturbed import undisturbed

LOGGER = logging.getLogger("hitlab.runner")

POLL_SECONDS = 0.5
HEALTH_TIMEOUT_SECONDS = 5
ALIVE = ("created", "running")


@dataclass
class _Running:
    """A container that serves for this run, and the lock on it."""

    container: Any
    claim: Claim
    url: str
    record: ContainerRecord
    since: float
    log_path: Path | None = field(default=None)

    def log_to(self, path: Path) -> None:
        self.log_path = path


@contextmanager
def managed_engine(
    scenario: Scenario,
    directory: RunDirectory,
    *,
    scenario_folder: Path,
    environment: Mapping[str, str] = os.environ,
    connect: Callable[[], Any] = docker_client,
    progress: Progress = silent,
) -> Iterator[Engine]:
    """A healthy vLLM for the scenario, for the length of the block; with `engine.keep` it goes on afterwards.

    Its log goes to `Engine.log_to`; that of an engine which did not start to `log/<id>.engine.log`, its tail also to the
    run's log. Containers that dead runs left are removed first.

    Raises ScenarioError: what the scenario asks for is not there or not allowed. ServiceError: no Docker, no image, no
    GPU, or an engine that does not become healthy, with its reason in one line.
    """
    wanted = configuration(scenario, scenario_folder, environment)
    handed_on = secrets_of(wanted, environment)
    learn(*handed_on.values())
    redact = Redactor(service_api_key(scenario.service.api_key))
    client = connect()
    try:
        with command_log(directory.log("run"), redact):
            running = _provide(client, scenario, wanted, handed_on, directory, redact, environment, progress)
        try:
            yield Engine(
                kind="vllm",
                inference_url=f"{running.url}/v1/completions",
                metrics_urls=(f"{running.url}/metrics",),
                reset_url=f"{running.url}/reset_prefix_cache",
                model=scenario.service.model,
                ranks=scenario.service.dp_size,
                container=running.record,
                log_to=running.log_to,
            )
        except ServiceError as error:
            reason = _death(running.container)
            if reason is None:
                raise
            raise ServiceError(f"{error}; the engine had ended: {reason}") from error
        finally:
            with undisturbed(), command_log(directory.log("run"), redact):
                _end(running, scenario.engine.keep, redact)
    finally:
        client.close()


def _provide(
    client: Any,
    scenario: Scenario,
    wanted: Configuration,
    handed_on: dict[str, str],
    directory: RunDirectory,
    redact: Redactor,
    environment: Mapping[str, str],
    progress: Progress,
) -> _Running:
    """An engine that was kept, or a new one."""
    image = present_image(client, wanted.image, progress)
    wanted = with_caches(wanted, image, environment)
    command = wanted.command((image.labels or {}).get(DEMO_MODEL_LABEL))
    identity = wanted.sha256(image.id)
    timeout = scenario.engine.startup_timeout_seconds
    with told_in_one_line(wanted.image):
        kept = _sweep(client, identity if scenario.engine.keep else None)

    def record(name: str, startup_seconds: float | None) -> ContainerRecord:
        return ContainerRecord(
            name=name,
            image=wanted.image,
            image_id=image.id,
            image_digest=digest_of(image),
            command=[redact(word) for word in ("vllm", "serve", *command)],
            environment=wanted.environment,
            env_from=list(wanted.env_from),
            configuration_sha256=identity,
            startup_seconds=startup_seconds,
            reused=startup_seconds is None,
        )

    started = time.time()
    if kept is not None:
        container, claim = kept
        progress(f"Use the engine {container.name} again", 0, None)
        LOGGER.info("the kept engine %s is used again", container.name)
    else:
        name = f"hitlab-vllm-{secrets.token_hex(4)}"
        claim = new_claim(directory.root.parent, name)
    try:
        if kept is None:
            labels = owner_labels(
                claim, run_id=directory.run_id, configuration=identity, keep=scenario.engine.keep
            )
            container = create_container(client, wanted, command, name=name, labels=labels)
            LOGGER.info("container %s: %s %s", name, wanted.image, redact(" ".join(command)))
            start_container(container, wanted.image, handed_on)
        with told_in_one_line(wanted.image):
            url = address_of(container, wanted.network)
            _wait_until_healthy(container, url, timeout, directory, redact, progress)
    except BaseException:
        with undisturbed():
            _remove_by_name(client, container.name if kept else name)
            claim.release(remove=True)
        raise
    seconds = None if kept else round(time.time() - started, 1)
    return _Running(container, claim, url, record(container.name, seconds), started)


def _sweep(client: Any, wanted: str | None) -> tuple[Any, Claim] | None:
    """Remove the containers of dead runs, and kept ones that this run has no use for: they hold its memory.

    `wanted`: identity of the engine that may be used again. One that a living run uses is not touched.
    """
    import docker

    found: tuple[Any, Claim] | None = None
    # One that somebody else removes meanwhile is passed over.
    for container in client.containers.list(
        all=True, filters={"label": f"{MANAGED}=true"}, ignore_removed=True
    ):
        labels = container.labels
        same = wanted is not None and labels.get(KEEP) == "true" and labels.get(CONFIGURATION) == wanted
        claim = claim_of(labels)
        if claim is None:
            if same:
                raise ServiceError(
                    f"the kept engine {container.name} is in use by run {labels.get(RUN)}; wait for its end, or set "
                    "engine.keep false"
                )
            LOGGER.info("container %s belongs to run %s, which lives", container.name, labels.get(RUN))
            continue
        if same and found is None and container.status == "running":
            found = (container, claim)
            continue
        LOGGER.warning("container %s was left by run %s: removed", container.name, labels.get(RUN))
        try:
            remove_container(container)
        except docker.errors.NotFound:
            LOGGER.info("container %s is gone already", container.name)
        finally:
            claim.release(remove=True)
    return found


def _wait_until_healthy(
    container: Any, url: str, timeout: float, directory: RunDirectory, redact: Redactor, progress: Progress
) -> None:
    """Return once /health answers 200. Raises ServiceError with the reason when it never does."""
    began = time.monotonic()
    while True:
        _show_step(container, round(time.monotonic() - began), progress)
        if not _runs(container):
            raise _failure(container, "ended before it was ready", directory, redact)
        try:
            if call("GET", f"{url}/health", seconds=HEALTH_TIMEOUT_SECONDS).status == 200:
                return
        except CallError as error:
            LOGGER.debug("not listening yet: %s", error)
        if time.monotonic() - began > timeout:
            late = f"was not ready within {timeout:g} s (engine.startup_timeout_seconds)"
            raise _failure(container, late, directory, redact)
        time.sleep(POLL_SECONDS)


def _show_step(container: Any, seconds: int, progress: Progress) -> None:
    """What the engine is at: a download of many GiB is no hang."""
    step = startup_step(log_end(container))
    if step is None:
        progress("Start vLLM", seconds, None)
    elif step[1] is None:
        progress(f"Start vLLM: {step[0]}", seconds, None)
    else:
        progress(f"Start vLLM: {step[0]}", step[1], 100)


def _failure(container: Any, what: str, directory: RunDirectory, redact: Redactor) -> ServiceError:
    """The error of an engine that did not start; its log is kept."""
    log = redact(log_text(container))
    path = directory.log("engine")
    save_log(container, path, redact)
    LOGGER.error("the engine %s; the end of its log:\n%s", what, tail(log))
    return ServiceError(f"vLLM {what}: {_reason(container, log)}; its log: {path}")


def _reason(container: Any, log: str) -> str:
    state = container.attrs.get("State", {})
    ended = container.status not in ALIVE
    return reason_of(
        log,
        exit_code=state.get("ExitCode") if ended else None,
        out_of_memory=bool(state.get("OOMKilled")),
    )


def _death(container: Any) -> str | None:
    """Why the engine has died meanwhile. None: it lives, as far as Docker knows."""
    import docker

    try:
        if _runs(container):
            return None
        return _reason(container, log_text(container))
    except (docker.errors.DockerException, requests.RequestException) as error:
        return f"its container cannot be asked ({presentable(str(error), 160)})"


def _runs(container: Any) -> bool:
    container.reload()
    return container.status in ALIVE


def _end(running: _Running, keep: bool, redact: Redactor) -> None:
    """Keep the log, remove the container (or not), give the lock back. What fails here is said and stops nothing."""
    import docker

    container = running.container
    removed = False
    try:
        if running.log_path is not None:
            since = running.since if running.record.reused else None
            save_log(container, running.log_path, redact, since)
    except (docker.errors.DockerException, requests.RequestException, ArtifactError) as error:
        _warn(f"the log of {container.name} could not be kept: {error}")
    try:
        if not (keep and _runs(container)):
            remove_container(container)
            removed = True
    except docker.errors.NotFound:
        removed = True  # somebody else did
    except (docker.errors.DockerException, requests.RequestException) as error:
        _warn(f"the container {container.name} could not be removed: {error}; docker rm -f {container.name}")
    finally:
        running.claim.release(remove=removed)


def _warn(message: str) -> None:
    LOGGER.warning("%s", message)
    print(f"WARNING: {presentable(message)}", file=sys.stderr)


def _remove_by_name(client: Any, name: str) -> None:
    """Also one whose creation was interrupted before anybody knew its id."""
    import docker

    try:
        remove_container(client.containers.get(name))
    except docker.errors.NotFound:
        LOGGER.info("container %s was not made", name)
    except (docker.errors.DockerException, requests.RequestException) as error:
        _warn(f"the container {name} could not be removed: {error}; docker rm -f {name}")
