"""The checks before a run, against a small HTTP server that answers as told."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from contract.errors import ScenarioError, ServiceError
from tiers.server.connect import Peer, require_peer
from tiers.server.http_api import HttpApi, difference
from tiers.server.parameters import ServerParameters

METRICS = """# TYPE lmcache_mp_lookups_total counter
lmcache_mp_lookups_total{rank="0"} 3
lmcache_mp_lookups_total{rank="1"} 4
# TYPE lmcache_mp_lookups_created gauge
lmcache_mp_lookups_created{rank="0"} 1700000000
# TYPE other_total counter
other_total 9
"""


class Api:
    def __init__(self) -> None:
        self.version: Any = "0.5.6"
        self.offered: str | None = "auto"
        self.checksums = 200
        self.deleted: list[dict[str, Any]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                documents = {
                    "/lmc_version": api.version,
                    "/config": {"mp": {"supported_transfer_mode": api.offered}},
                    "/status": {
                        "storage_manager": {
                            "l1_manager": {"memory_total_bytes": 1000},
                            "l1_eviction_controller": {"trigger_watermark": 0.8},
                        }
                    },
                }
                if self.path == "/metrics":
                    self.answer(200, METRICS.encode())
                else:
                    self.answer(200, json.dumps(documents[self.path]).encode())

            def do_POST(self) -> None:
                self.answer(api.checksums, json.dumps({"chunk_checksums": ["a", "b"]}).encode())

            def do_DELETE(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                api.deleted.append(body)
                self.answer(200, json.dumps({"deleted": len(body["keys"])}).encode())

            def answer(self, code: int, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    threading.Thread(target=made.server.serve_forever, args=(0.01,), daemon=True).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def peer(api: Api, **options: Any) -> Peer:
    parameters = ServerParameters(rpc_url=f"tcp://127.0.0.1:{api.port}", url=api.url, **options)
    return require_peer(parameters, "0.5.6")


def test_a_peer_of_the_same_version_that_offers_the_mode_is_taken(api: Api) -> None:
    found = peer(api, mode="cpu")
    assert (found.version, found.l1_bytes, found.notes) == ("0.5.6", 800, ())


@pytest.mark.parametrize("version", ["0.5.3", "0.5.7rc3", None])
def test_another_version_is_refused_with_both(api: Api, version: str | None) -> None:
    api.version = version
    told = version or "of a version that it does not tell"
    with pytest.raises(ServiceError, match=f"LMCache {told}, this side has 0.5.6"):
        peer(api)


@pytest.mark.parametrize(
    ("offered", "mode", "transfer", "flag"),
    [
        (
            "lmcache_driven",
            "cpu",
            "auto",
            "--supported-transfer-mode engine_driven .*--transfer-mode lmcache_driven",
        ),
        ("engine_driven", "cpu", "lmcache_driven", "--supported-transfer-mode lmcache_driven"),
        ("engine_driven", "gpu", "auto", "--supported-transfer-mode lmcache_driven"),
    ],
)
def test_a_mode_that_is_not_offered_names_the_servers_flag(
    api: Api, offered: str, mode: str, transfer: str, flag: str
) -> None:
    api.offered = offered
    with pytest.raises(ServiceError, match=flag):
        peer(api, mode=mode, transfer_mode=transfer)


def test_nothing_listening_is_one_line(free_port: int) -> None:
    with pytest.raises(ServiceError, match=f"start it with lmcache server --port {free_port}"):
        require_peer(ServerParameters(rpc_url=f"tcp://127.0.0.1:{free_port}"), "0.5.6")


@pytest.mark.parametrize("url", ["tcp://", "tcp://host", "tcp://host:port", "host:99999", "tcp://:5555"])
def test_bad_addresses_are_usage_errors(url: str) -> None:
    with pytest.raises(ScenarioError, match="--rpc-url"):
        require_peer(ServerParameters(rpc_url=url), "0.5.6")


def test_an_api_that_was_named_has_to_answer(api: Api, free_port: int) -> None:
    parameters = ServerParameters(rpc_url=f"tcp://127.0.0.1:{api.port}", url=f"http://127.0.0.1:{free_port}")
    with pytest.raises(ServiceError, match="--http-port"):
        require_peer(parameters, "0.5.6")


def test_counters_are_sums_over_labels_and_what_moved(api: Api) -> None:
    counters = HttpApi(api.url).counters()
    assert counters == {"lmcache_mp_lookups": 7.0}
    assert difference({"lmcache_mp_lookups": 5.0}, counters | {"lmcache_new": 1.0, "lmcache_zero": 0.0}) == {
        "lmcache_mp_lookups": 2.0,
        "lmcache_new": 1.0,
    }


@pytest.mark.parametrize("code", [404, 405, 501])
def test_servers_without_checksums_offer_none(api: Api, code: int) -> None:
    api.checksums = code
    assert HttpApi(api.url).checksums(1, [1, 2], 1) is None


def test_objects_are_removed_in_batches(api: Api) -> None:
    names = [{"number": number} for number in range(12_000)]
    assert HttpApi(api.url).delete(names, "l1") == (12_000, 0)
    assert [len(body["keys"]) for body in api.deleted] == [5000, 5000, 2000]
    assert [name for body in api.deleted for name in body["keys"]] == names
