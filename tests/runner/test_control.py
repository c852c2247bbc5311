"""Calls to an engine go to that engine, or end."""

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from contract.errors import ScenarioError, ServiceError
from contract.scenario import Scenario
from enginemetrics.scrape import fetch
from runner.control import ControlClient
from runner.engines.engine import Engine
from runner.engines.external import external_engine

PAGE = b"vllm:prefix_cache_queries_total 1\nvllm:prefix_cache_hits_total 0\n"
KEY = "canary-key-of-control"


@dataclass
class Asked:
    """What a server was asked, and where it sends those who ask."""

    url: str = ""
    redirect: tuple[int, str] | None = None
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)


@contextmanager
def server() -> Iterator[Asked]:
    asked = Asked()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.requests.append((self.command, self.path, self.headers.get("Authorization")))
            status, target = asked.redirect or (200, "")
            self.send_response(status)
            if target:
                self.send_header("Location", target)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(PAGE)))
            self.end_headers()
            self.wfile.write(PAGE)

        do_POST = do_GET  # noqa: N815 - the name that the base class calls

        def log_message(self, *_: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    asked.url = f"http://127.0.0.1:{listener.server_address[1]}"
    try:
        yield asked
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


def client(engine: Engine) -> ControlClient:
    return ControlClient(engine, api_key=KEY, timeout_seconds=10, engine_label_map={})


def engine_at(url: str) -> Engine:
    return Engine("external", f"{url}/v1/completions", (f"{url}/metrics",), f"{url}/reset", "m", 1)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_call_is_led_elsewhere(status: int) -> None:
    """Another engine's counters would be taken for this one's, a POST would become a GET, and the key would travel."""
    with server() as here, server() as elsewhere:
        here.redirect = (status, f"{elsewhere.url}/metrics")
        engine = client(engine_at(here.url))
        for call in (
            engine.scrape,
            lambda: engine.complete({"prompt": "x"}, None),
            lambda: engine.call("POST", f"{here.url}/reset"),
            lambda: engine.get("/v1/models"),
            lambda: fetch(f"{here.url}/metrics", api_key=KEY),
        ):
            with pytest.raises(ServiceError, match=f"HTTP {status}, leads to {elsewhere.url}/metrics"):
                call()
        assert elsewhere.requests == []
        assert [method for method, *_ in here.requests] == ["GET", "POST", "POST", "GET", "GET"]


@pytest.mark.parametrize("setting", ["metrics_url", "metrics_urls"])
def test_a_page_that_is_not_there_names_the_field_that_the_scenario_has(setting: str) -> None:
    with server() as here:
        page: str | list[str] = f"{here.url}/nowhere"
        service = {"inference_url": f"{here.url}/v1/completions", "model": "m"}
        service[setting] = [page] if setting == "metrics_urls" else page
        engine = external_engine(Scenario.model_validate({"service": service}).service)
        here.redirect = (404, "")
        with pytest.raises(ServiceError, match=rf"\(service\.{setting}\)"):
            client(engine).scrape()


def test_a_login_goes_to_its_own_address_alone() -> None:
    with server() as here:
        address = here.url.replace("http://", "http://me:p%40ss%20word-1@")
        service = Scenario.model_validate(
            {
                "service": {
                    "inference_url": f"{here.url}/v1/completions",
                    "metrics_url": f"{address}/metrics",
                    "reset_url": f"{here.url}/reset",
                    "dp_size": 1,
                    "model": "m",
                }
            }
        ).service
        engine = external_engine(service)
        assert "word" not in repr(engine)
        calls = client(engine)
        calls.scrape()
        calls.call("POST", f"{here.url}/reset")
        calls.get("/v1/models")
    login = f"Basic {base64.b64encode(b'me:p@ss word-1').decode()}"
    assert [sent for *_, sent in here.requests] == [login, f"Bearer {KEY}", f"Bearer {KEY}"]


def test_the_address_of_the_load_has_no_login() -> None:
    service = Scenario.model_validate(
        {"service": {"inference_url": "http://me:pass-word-1@x/v1/completions"}}
    ).service
    with pytest.raises(ScenarioError, match=r"service\.inference_url") as caught:
        external_engine(service)
    assert "pass-word" not in str(caught.value)
