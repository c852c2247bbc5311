"""A managed engine on a Docker that is right, and on one that is wrong in every way."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import docker
import pytest
import requests

from contract.errors import HitLabError, ScenarioError, ServiceError
from contract.run_directory import RunDirectory
from contract.scenario import parse_scenario
from runner.engines.engine import Engine
from runner.engines.vllm import managed_engine
from runner.undisturbed import undisturbed
from tests.runner.engines.fake_docker import FakeContainer, FakeDocker, FakeImage, api_error, health_server

SECRET = "canary-51c2"  # noqa: S105 - planted, to be looked for

Managed = Callable[..., AbstractContextManager[Engine]]


@pytest.fixture(scope="module")
def healthy_port() -> Iterator[int]:
    with health_server([200]) as port:
        yield port


@pytest.fixture
def host(healthy_port: int) -> FakeDocker:
    return FakeDocker(healthy_port)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "outputs_20260101_000000", "run_20260101_000000")
    (made.root / "log").mkdir(parents=True)
    return made


@pytest.fixture
def managed(host: FakeDocker, directory: RunDirectory, tmp_path: Path) -> Managed:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")

    def start(
        environment: dict[str, str] | None = None, progress: Any = None, **engine: Any
    ) -> AbstractContextManager[Engine]:
        scenario = parse_scenario(
            {
                "tokenizer": {"path": str(model)},
                "service": {"model": "served", "dp_size": 2},
                "engine": {"kind": "vllm", "image": "vllm:1", **engine},
            },
            folder=tmp_path,
        )
        options = {} if progress is None else {"progress": progress}
        return managed_engine(
            scenario,
            directory,
            scenario_folder=tmp_path,
            environment=environment or {},
            connect=lambda: host,
            **options,
        )

    return start


def refusal(managed: Managed, *arguments: Any, **engine: Any) -> str:
    """The one line of an engine that cannot be had."""
    with pytest.raises(HitLabError) as caught, managed(*arguments, **engine):
        pytest.fail("it started")
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def locks(directory: RunDirectory) -> list[Path]:
    return sorted((directory.root.parent / ".hitlab-locks").glob("*"))


def test_engine_of_a_run_and_nothing_afterwards(
    managed: Managed, host: FakeDocker, directory: RunDirectory, tmp_path: Path
) -> None:
    with managed() as engine:
        (container,) = host.all
        container.log = b"hello\n"
        assert engine.log_to is not None
        engine.log_to(tmp_path / "engine.log")
        assert len(locks(directory)) == 1
    assert engine.inference_url == f"http://127.0.0.1:{host.port}/v1/completions"
    assert engine.base_url == f"http://127.0.0.1:{host.port}"
    assert (engine.kind, engine.model, engine.ranks) == ("vllm", "served", 2)
    assert engine.container is not None
    assert engine.container.image_digest == "vllm@sha256:abc"
    assert engine.container.command[:2] == ["vllm", "serve"]
    assert engine.container.reused is False
    assert container.calls == ["start", "stop", "remove"]
    assert host.all == []
    assert host.closed
    assert host.pulled == [], "an image that is there is not pulled"
    assert locks(directory) == []
    assert (tmp_path / "engine.log").read_text() == "hello\n"


def test_container_is_bounded(managed: Managed, host: FakeDocker) -> None:
    with managed(devices=["/dev/davinci0"], shm_size="3g"):
        options = host.all[0].options
    assert options["ports"] == {"8000/tcp": ("127.0.0.1", None)}
    assert options["cap_drop"] == ["ALL"]
    assert options["security_opt"] == ["no-new-privileges:true"]
    assert options["devices"] == ["/dev/davinci0:/dev/davinci0:rw"]
    assert options["shm_size"] == "3g"
    assert all(mount["ReadOnly"] for mount in options["mounts"] if mount["Type"] == "bind")
    assert {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in options["ulimits"]} == {
        "memlock": (-1, -1),
        "stack": (64 << 20, 64 << 20),
    }
    assert not {"privileged", "pid_mode", "network_mode", "ipc_mode", "userns_mode"} & set(options)
    assert options["labels"]["com.hitlab.run"] == "run_20260101_000000"


def test_an_engine_on_the_cpu_asks_for_no_limits(managed: Managed, host: FakeDocker) -> None:
    with managed(gpus=0):
        assert host.all[0].options["ulimits"] == []


def test_on_a_private_network_no_port_is_published(managed: Managed, host: FakeDocker) -> None:
    def die(container: FakeContainer) -> None:
        container.die("ValueError: enough seen")  # nobody answers to its name here

    host.on_start = die  # type: ignore[method-assign]
    assert "enough seen" in refusal(managed, {"HITLAB_NETWORK": "hitlab"})
    assert host.made[0].options["network"] == "hitlab"
    assert "ports" not in host.made[0].options


@pytest.mark.parametrize(
    ("gpus", "runtimes", "expected"),
    [
        (None, {"runc": {}}, []),
        (None, {"runc": {}, "nvidia": {}}, [{"Count": -1, "DeviceIDs": []}]),
        ("all", {"runc": {}}, [{"Count": -1, "DeviceIDs": []}]),
        (3, {"runc": {}}, [{"Count": 3, "DeviceIDs": []}]),
        (0, {"nvidia": {}}, []),
        ([], {"nvidia": {}}, []),
        ([1, "GPU-a"], {"runc": {}}, [{"Count": 0, "DeviceIDs": ["1", "GPU-a"]}]),
    ],
)
def test_gpus(
    managed: Managed, host: FakeDocker, gpus: Any, runtimes: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    host.runtimes = runtimes
    with managed(gpus=gpus):
        requested = host.all[0].options["device_requests"]
    assert [{key: request[key] for key in ("Count", "DeviceIDs")} for request in requested] == expected
    assert all(request["Capabilities"] == [["gpu"]] for request in requested)


def test_secrets_go_through_standard_input_alone(
    managed: Managed, host: FakeDocker, directory: RunDirectory, tmp_path: Path
) -> None:
    with managed({"TOKEN": SECRET}, env_from=["TOKEN"]) as engine:
        (container,) = host.all
        container.log = f"INFO token={SECRET}\n".encode()
        assert engine.log_to is not None
        engine.log_to(tmp_path / "engine.log")
    assert container.socket.received == f"TOKEN={SECRET}\n\n".encode()
    assert container.calls[:2] == ["attach", "start"]
    assert container.options["stdin_open"] is True
    assert SECRET not in str(container.options) + str(container.command)
    assert engine.container is not None
    assert engine.container.env_from == ["TOKEN"]
    assert (tmp_path / "engine.log").read_text() == "INFO token=***\n"
    assert SECRET not in directory.log("run").read_text()


def test_absent_image_is_pulled_with_progress(managed: Managed, host: FakeDocker) -> None:
    def downloading(layer: str, current: int, total: int) -> dict[str, Any]:
        detail = {"current": current, "total": total}
        return {"status": "Downloading", "id": layer, "progressDetail": detail}

    host.in_registry = {"other:2": FakeImage(id="sha256:9", digests=[])}
    host.pull_events = [{"status": "Pulling"}, downloading("a", 1, 10), downloading("b", 5, 20)]
    seen: list[tuple[str, int, int | None]] = []
    with managed(progress=lambda *step: seen.append(step), image="other:2") as engine:
        assert engine.container is not None
        assert engine.container.image_digest is None
        assert engine.container.image_id == "sha256:9"
    assert host.pulled == ["other:2"]
    assert [step for step in seen if step[0] == "Pull other:2"] == [
        ("Pull other:2", 0, None),
        ("Pull other:2", 1, 10),
        ("Pull other:2", 6, 30),
    ]
    assert ("Start vLLM", 0, None) in seen


def test_image_that_cannot_be_pulled(managed: Managed, host: FakeDocker) -> None:
    line = refusal(managed, image="absent:3")
    assert "engine.image: absent:3 is not on the Docker host and cannot be pulled" in line
    assert "manifest unknown" in line
    host.in_registry = {"absent:3": FakeImage()}
    host.pull_events = [{"error": "toomanyrequests: slow down"}]
    assert "toomanyrequests" in refusal(managed, image="absent:3")
    assert host.made == []


def test_no_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.engines.vllm.docker_host import docker_client, no_docker

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    with pytest.raises(ServiceError, match=r"no Docker engine answers .*--engine simulator"):
        docker_client()
    assert "group docker" in str(no_docker(docker.errors.DockerException("('x', 'Permission denied')")))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            'could not select device driver "" with capabilities: [[gpu]]',
            "engine.gpus: Docker cannot hand on",
        ),
        ("nvidia-container-cli: initialization error: nvml error: driver not loaded", "engine.gpus"),
        (
            'error gathering device information while adding custom device "/dev/davinci0": no such file',
            "engine.devices: /dev/davinci0 is not on the Docker host",
        ),
        ('exec: "vllm": executable file not found in $PATH', "vllm:1 has no `vllm` command"),
        ("network hitlab not found", "HITLAB_NETWORK"),
        ("bind source path does not exist: /models/x", "/models/x is not on the Docker host"),
        ("write /var/lib/docker/x: no space left on device", "disk is full"),
        (
            "error setting rlimits for ready process: error setting rlimit type 8: operation not permitted",
            "memlock unlimited, stack 64 MiB",
        ),
        ("No such container: 02e8", "it was removed"),
        ("can not get logs from container which is dead or marked for removal", "it was removed"),
        ("something nobody thought of", "something nobody thought of"),
    ],
)
def test_docker_refuses(
    managed: Managed, host: FakeDocker, directory: RunDirectory, said: str, words: str
) -> None:
    host.start_error = api_error(said)
    assert words in refusal(managed)
    assert host.all == []
    assert locks(directory) == []


@pytest.mark.parametrize(
    ("log", "exit_code", "out_of_memory", "words"),
    [
        (
            "vllm: error: unrecognized arguments: --foo",
            2,
            False,
            "engine.args: this vLLM does not know --foo",
        ),
        (
            "Invalid repository ID or local directory specified",
            1,
            False,
            "tokenizer.path: the model is missing",
        ),
        ("CUDA out of memory. Tried to allocate 1 GiB", 1, False, "out of memory on the accelerator"),
        ("INFO loading", 137, True, "the kernel killed it: out of memory"),
    ],
)
def test_engine_that_dies(
    managed: Managed,
    host: FakeDocker,
    directory: RunDirectory,
    log: str,
    exit_code: int,
    out_of_memory: bool,
    words: str,
) -> None:
    def die(container: FakeContainer) -> None:
        container.die(f"first line\n{log}\n", exit_code, out_of_memory)

    host.on_start = die  # type: ignore[method-assign]
    line = refusal(managed)
    assert words in line
    assert str(directory.log("engine")) in line
    assert log in directory.log("engine").read_text()
    assert f"first line\n{log}" in directory.log("run").read_text()
    assert host.all == []


def test_engine_that_takes_too_long(host: FakeDocker, managed: Managed) -> None:
    with health_server([503]) as host.port:
        line = refusal(managed, startup_timeout_seconds=0.2)
    assert "not ready within 0.2 s (engine.startup_timeout_seconds)" in line
    assert host.all == []


def test_what_a_starting_engine_does_is_shown(host: FakeDocker, managed: Managed) -> None:
    def load(container: FakeContainer) -> None:
        container.log = b"Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03]\n"

    host.on_start = load  # type: ignore[method-assign]
    shown: list[tuple[str, int, int | None]] = []
    with managed(progress=lambda *step: shown.append(step)):
        pass
    assert ("Start vLLM: Loading safetensors checkpoint shards", 25, 100) in shown


def test_engine_that_becomes_healthy_late(host: FakeDocker, managed: Managed) -> None:
    with health_server([503, 503, 200]) as host.port, managed() as engine:
        assert engine.container is not None
        assert (engine.container.startup_seconds or 0) > 0.5


def test_death_in_the_middle_is_explained(managed: Managed, host: FakeDocker) -> None:
    def die_unheard() -> None:
        host.all[0].die("", 137, out_of_memory=True)
        raise ServiceError("no answer")

    with pytest.raises(ServiceError, match=r"no answer; the engine had ended: .*out of memory"), managed():
        die_unheard()
    with pytest.raises(ServiceError, match=r"^no answer$"), managed():
        raise ServiceError("no answer")
    assert host.all == []


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), ValueError("a fault"), ScenarioError("x")])
def test_whatever_ends_the_run_the_container_goes(
    managed: Managed, host: FakeDocker, directory: RunDirectory, ending: BaseException
) -> None:
    with pytest.raises(type(ending)), managed():
        raise ending
    assert host.all == []
    assert locks(directory) == []


def test_interrupted_while_it_is_made_or_starts(
    managed: Managed, host: FakeDocker, directory: RunDirectory
) -> None:
    host.create_error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), managed():
        pytest.fail("it started")
    assert len(host.made) == 1
    assert host.all == []
    host.create_error = None

    def interrupt(container: FakeContainer) -> None:
        raise KeyboardInterrupt

    host.on_start = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt), managed():
        pytest.fail("it started")
    assert host.all == []
    assert locks(directory) == []


def test_container_that_cannot_be_removed_is_told(
    managed: Managed, host: FakeDocker, capsys: pytest.CaptureFixture[str], directory: RunDirectory
) -> None:
    with managed():
        host.remove_error = api_error("device or resource busy")
    assert "could not be removed" in capsys.readouterr().err
    assert len(locks(directory)) == 1, "the next start takes the container by its lock"
    host.remove_error = None
    with managed():
        assert len(host.all) == 1
    assert host.all == []
    assert locks(directory) == []


@pytest.mark.parametrize("error", [api_error("removal in progress", 409), docker.errors.NotFound("gone")])
def test_container_that_somebody_else_removes(
    managed: Managed, host: FakeDocker, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    with managed():
        host.remove_error = error
    assert capsys.readouterr().err == ""


def test_docker_that_goes_away_during_the_run(
    managed: Managed, host: FakeDocker, capsys: pytest.CaptureFixture[str]
) -> None:
    def go_away() -> None:
        host.reload_error = requests.ConnectionError("refused")
        raise ServiceError("no answer")

    with pytest.raises(ServiceError, match="its container cannot be asked"), managed(keep=True):
        go_away()
    assert "could not be removed" in capsys.readouterr().err


def test_kept_engine_is_used_again(managed: Managed, host: FakeDocker, tmp_path: Path) -> None:
    with managed(keep=True) as first:
        pass
    assert len(host.all) == 1
    with managed(keep=True) as second:
        assert second.log_to is not None
        second.log_to(tmp_path / "engine.log")
    assert len(host.made) == 1
    assert first.container is not None
    assert second.container is not None
    assert second.container.reused is True
    assert second.container.startup_seconds is None
    assert second.container.name == first.container.name
    assert second.inference_url == first.inference_url
    assert host.log_options["since"] > 0, "only what it said in this run"


@pytest.mark.parametrize(
    "change", [{"shm_size": "1g", "keep": True}, {"keep": False}, {"args": ["--x"], "keep": True}]
)
def test_kept_engine_makes_room_for_another(
    managed: Managed, host: FakeDocker, change: dict[str, Any]
) -> None:
    with managed(keep=True):
        pass
    with managed(**change):
        assert host.all == [host.made[1]]


def test_kept_engine_that_died_or_was_built_anew_is_replaced(managed: Managed, host: FakeDocker) -> None:
    with managed(keep=True):
        host.all[0].die("ValueError: x")
    assert host.all == [], "a dead engine is not kept"
    with managed(keep=True):
        pass
    host.all[0].die("ValueError: between two runs")
    with managed(keep=True):
        assert host.all == [host.made[2]]
    host.present["vllm:1"] = FakeImage(id="sha256:2")
    with managed(keep=True):
        assert host.all == [host.made[3]]


def test_kept_engine_in_use_is_not_shared_and_not_touched(managed: Managed, host: FakeDocker) -> None:
    with managed(keep=True):
        assert "is in use by run run_20260101_000000" in refusal(managed, keep=True)
        assert len(host.all) == 1
        with managed(keep=False):
            assert len(host.all) == 2
        assert host.all == [host.made[0]]
        assert host.all[0].status == "running"


def test_containers_of_others_are_not_touched(managed: Managed, host: FakeDocker) -> None:
    foreign = FakeContainer(host, "vllm:1", [], {"name": "x", "labels": {"com.hitlab.managed": "true"}})
    host.all.append(foreign)
    with managed():
        pass
    assert host.all == [foreign]
    assert foreign.calls == []


def test_signals_wait_for_the_clean_up() -> None:
    done = []

    def clean_up() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        done.append("cleaned up")

    with pytest.raises(KeyboardInterrupt), undisturbed():
        clean_up()
    assert done == ["cleaned up"]
