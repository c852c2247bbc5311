"""Every client of control calls ends in time, whatever trickles."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from analyzer.watch.availability import GrafanaUnavailableError
from analyzer.watch.grafana import Annotator, GrafanaAccess
from contract.errors import ServiceError
from contract.scenario.model import Service
from enginemetrics.scrape import fetch
from runner.bench.lmcache import LmCache
from runner.control import ControlClient, engine_version
from runner.engines.external import external_engine
from tests.trickling_server import GENEROUS_SECONDS, TRICKLING, trickling_server
from tiers.server.http_api import HttpApi, HttpApiError

SECONDS = 0.3


def control(url: str) -> ControlClient:
    engine = replace(
        external_engine(Service()), inference_url=f"{url}v1/completions", reset_url=f"{url}reset"
    )
    return ControlClient(engine, api_key="", timeout_seconds=SECONDS, engine_label_map={})


def annotations(url: str, folder: Path) -> None:
    password = folder / "password"
    password.write_text("x")
    access = GrafanaAccess(url.rstrip("/"), "admin", password)
    Annotator(access, timeout_seconds=SECONDS).reconcile("run", "stamp", ())


CLIENTS: dict[str, Callable[[str, Path], object]] = {
    "metrics page": lambda url, _: fetch(url, timeout_seconds=SECONDS),
    "version": lambda url, _: engine_version(control(url)),
    "model list": lambda url, _: control(url).get("/v1/models"),
    "reset": lambda url, _: control(url).call("POST", f"{url}reset"),
    "probe": lambda url, _: control(url).complete({"prompt": "a"}, 0),
    "LMCache for the bench": lambda url, _: LmCache(url).memory_bytes(),
    "LMCache for the tiers": lambda url, _: HttpApi(url).version(),
    "Grafana": annotations,
}


@pytest.mark.parametrize("kind", ["status line", "body until the connection ends", "100 Continue"])
@pytest.mark.parametrize("client", CLIENTS)
def test_it_ends_in_time_and_says_so(
    client: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.bench.lmcache.SECONDS", SECONDS)
    monkeypatch.setattr("tiers.server.http_api.SECONDS", SECONDS)
    monkeypatch.setattr(HttpApi._ask, "__defaults__", (None, SECONDS))
    begin = time.monotonic()
    with (
        trickling_server(TRICKLING[kind]) as url,
        pytest.raises((ServiceError, HttpApiError, GrafanaUnavailableError)) as caught,
    ):
        CLIENTS[client](url, tmp_path)
    assert "\n" not in str(caught.value)
    assert any(words in str(caught.value) for words in ("within 0.3 s", "in time"))
    assert time.monotonic() - begin < GENEROUS_SECONDS
