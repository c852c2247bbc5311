"""A Docker engine in memory, as far as a managed engine talks to one, that can be wrong in every way.

It knows nothing of HitLab: it keeps containers, and raises the SDK's own errors where a test asks for them.
"""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import docker


def api_error(text: str, status: int = 500) -> docker.errors.APIError:
    response = type("Response", (), {"status_code": status, "reason": "Error", "url": "http+docker://x"})()
    return docker.errors.APIError(text, response=response, explanation=text)


class FakeSocket:
    def __init__(self) -> None:
        self.received = b""
        self._sock = self

    def sendall(self, data: bytes) -> None:
        self.received += data

    def close(self) -> None:
        self.closed = True


class FakeContainer:
    def __init__(self, host: "FakeDocker", image: str, command: list[str], options: dict[str, Any]) -> None:
        self.host, self.image_name, self.command, self.options = host, image, command, options
        self.name: str = options["name"]
        self.labels: dict[str, str] = options["labels"]
        self.status = "created"
        self.log = b""
        self.socket = FakeSocket()
        self.calls: list[str] = []
        ports = {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(host.port)}]}
        self.attrs: dict[str, Any] = {
            "State": {"ExitCode": 0, "OOMKilled": False},
            "NetworkSettings": {"Ports": ports},
        }

    def start(self) -> None:
        self.calls.append("start")
        if self.host.start_error:
            raise self.host.start_error
        self.status = "running"
        self.host.on_start(self)

    def die(self, log: str, exit_code: int = 1, out_of_memory: bool = False) -> None:
        self.status = "exited"
        self.log = log.encode()
        self.attrs["State"] = {"ExitCode": exit_code, "OOMKilled": out_of_memory}

    def attach_socket(self, params: dict[str, int]) -> FakeSocket:
        self.calls.append("attach")
        assert params["stdin"] == 1
        return self.socket

    def reload(self) -> None:
        if self.host.reload_error:
            raise self.host.reload_error
        if self not in self.host.all:
            raise docker.errors.NotFound("no such container")

    def logs(self, **options: Any) -> bytes:
        self.host.log_options = options
        return self.log

    def stop(self, timeout: int) -> None:
        self.calls.append("stop")
        if self.status != "running":
            raise api_error("not running", 409)
        self.status = "exited"

    def remove(self, force: bool, v: bool) -> None:
        assert force
        assert v
        self.calls.append("remove")
        if self.host.remove_error:
            raise self.host.remove_error
        if self not in self.host.all:
            raise docker.errors.NotFound("no such container")
        self.host.all.remove(self)


class FakeImage:
    def __init__(self, **attributes: Any) -> None:
        self.id = attributes.get("id", "sha256:1")
        self.labels = attributes.get("labels", {})
        self.attrs = {
            "RepoDigests": attributes.get("digests", ["vllm@sha256:abc"]),
            "Config": {"User": attributes.get("user", "")},
        }


class FakeDocker:
    """Is its own `images`, `containers` and `api`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.present: dict[str, FakeImage] = {"vllm:1": FakeImage()}
        self.in_registry: dict[str, FakeImage] = {}
        self.pull_events: list[dict[str, Any]] = []
        self.pulled: list[str] = []
        self.all: list[FakeContainer] = []
        self.made: list[FakeContainer] = []
        self.runtimes: dict[str, Any] = {"runc": {}}
        self.start_error: Exception | None = None
        self.create_error: BaseException | None = None
        self.remove_error: Exception | None = None
        self.reload_error: Exception | None = None
        self.log_options: dict[str, Any] = {}
        self.closed = False
        self.images = self.containers = self.api = self

    def on_start(self, container: FakeContainer) -> None:
        """Tests replace it by what happens inside the container."""

    def info(self) -> dict[str, Any]:
        return {"Runtimes": self.runtimes}

    def close(self) -> None:
        self.closed = True

    def get(self, name: str) -> Any:
        for container in self.all:
            if container.name == name:
                return container
        if name in self.present:
            return self.present[name]
        if name.startswith("hitlab-vllm-"):
            raise docker.errors.NotFound(f"no such container {name}")
        raise docker.errors.ImageNotFound(f"no such image {name}")

    def pull(self, repository: str, tag: str, stream: bool, decode: bool) -> Iterator[dict[str, Any]]:
        assert stream
        assert decode
        name = f"{repository}:{tag}"
        self.pulled.append(name)
        yield from self.pull_events
        if name not in self.in_registry:
            raise api_error(f"manifest for {name} not found: manifest unknown", 404)
        self.present[name] = self.in_registry[name]

    def create(self, image: str, command: list[str], **options: Any) -> FakeContainer:
        container = FakeContainer(self, image, command, options)
        self.all.append(container)
        self.made.append(container)
        if self.create_error:
            raise self.create_error  # perhaps after it was made: the answer was lost
        return container

    def list(self, **options: Any) -> list[FakeContainer]:
        assert options["all"]
        assert options["filters"] == {"label": "com.hitlab.managed=true"}
        return [container for container in self.all if container.labels.get("com.hitlab.managed") == "true"]


@contextmanager
def health_server(statuses: list[int]) -> Iterator[int]:
    """A port whose /health answers `statuses` one after the other, the last for ever."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
            self.send_response(status if self.path == "/health" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Not to the test's output."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()
