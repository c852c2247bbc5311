"""The engine of a bench: its address, its model, and what it tells about itself."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlsplit

from contract.errors import NotThisEngineError, ScenarioError, ServiceError
from contract.foreign import decimal_number
from contract.measurement import Check, Finding
from contract.trust import SYSTEM, Trust
from enginemetrics.exposition import parse_exposition
from enginemetrics.names import PREFIX_CACHE_COUNTERS
from enginemetrics.scrape import fetch
from enginemetrics.snapshot import CacheConfig
from runner.control import ControlClient, Scrape, engine_version, named, refusal, served_models
from runner.counting import OtherTrafficError
from runner.engine_cache import engine_cache
from runner.engines.engine import Engine
from runner.page_identity import foreign_page, prove_page

CHAT = "/v1/chat/completions"
CONTROL_SECONDS = 60.0
CACHING_OFF = (
    "the engine's prefix caching is off (vllm:cache_config_info), so it looks nothing up and counts nothing"
)


@dataclass(frozen=True)
class BenchEngine:
    """An engine that answered.

    Attributes:
        client: for all but the load.
        scrape: its metrics at the beginning; None where it has none that can be read, and then `no_metrics` says why.
        cache: of its first rank; None where it does not report.
        not_counting: why its prefix-cache counters say nothing.
        check: whether its metrics page was proved to be its own; None: not asked yet.
        findings: what has to be said at once.
    """

    client: ControlClient
    model: str
    version: str | None
    max_model_len: int | None
    scrape: Scrape | None
    no_metrics: str | None
    cache: CacheConfig | None
    not_counting: str | None = None
    check: Check | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def url(self) -> str:
        return self.client.engine.base_url

    @property
    def ranks(self) -> int | None:
        """None without metrics: nothing else tells."""
        return None if self.scrape is None else self.client.engine.ranks


def base_url(text: str) -> str:
    """The address without a trailing /v1, with http:// where no scheme is given; a bare port is one on this machine.

    Raises:
        ScenarioError: not an address.
    """
    url = text.strip()
    if url.isdigit():
        url = f"localhost:{url}"
    if "://" not in url:
        url = f"http://{url}"
    url = url.rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        valid = False
    if not valid:
        raise ScenarioError(f"{text!r} is not an address; give one like http://localhost:8000")
    if parts.username is not None or parts.password is not None:
        raise ScenarioError(
            "an engine's address with a password in it is refused; the key is taken from OPENAI_API_KEY"
        )
    return url


def find_engine(url: str, model: str | None, *, api_key: str, trust: Trust = SYSTEM) -> BenchEngine:
    """Ask the engine what it serves and how its cache is made.

    Raises:
        ServiceError: it cannot be reached, or does not serve the model.
    """
    address = base_url(url)
    engine = Engine(
        kind="external",
        inference_url=address + CHAT,
        metrics_urls=(f"{address}/metrics",),
        reset_url=f"{address}/reset_prefix_cache",
        model=model or "",
        ranks=1,
        trust=trust,
        metrics_setting="--engine-url",
    )

    def client_of(found: Engine, labels: Mapping[str, int] = MappingProxyType({})) -> ControlClient:
        return ControlClient(
            found, api_key=api_key, timeout_seconds=CONTROL_SECONDS, engine_label_map=dict(labels)
        )

    asking = client_of(engine)
    served, max_model_len = _model(asking, model)
    version = engine_version(asking)
    engine = replace(engine, model=served)
    scrape: Scrape | None = None
    no_metrics: str | None = None
    findings: tuple[Finding, ...] = ()
    try:
        pages = fetch(
            engine.metrics_urls,
            api_key=api_key or None,
            trust=trust,
            timeout_seconds=CONTROL_SECONDS,
            setting=engine.metrics_setting,
        )
        labels = _rank_labels(pages[0], served, engine.metrics_urls[0])
        engine = replace(engine, ranks=max(1, len(labels)))
        client = client_of(engine, labels)
        scrape = client.scrape()
    except ServiceError as error:
        no_metrics = str(error)
        findings = foreign_page(error)
        client = client_of(engine)
    return BenchEngine(
        client=client,
        model=served,
        version=version,
        max_model_len=max_model_len,
        scrape=scrape,
        no_metrics=no_metrics,
        cache=None if scrape is None else scrape.snapshot.ranks[0].cache_config,
        findings=findings,
    )


def proved(engine: BenchEngine, stop: threading.Event) -> BenchEngine:
    """With a metrics page that is proved to be this engine's, or without any: a few short prompts are sent.

    Raises ServiceError when the engine cannot be asked any more.
    """
    page = engine.scrape
    if page is None:
        return engine
    off = engine_cache(page.snapshot).enabled is False
    findings = (Finding(code="PREFIX_CACHING_OFF", message=f"{CACHING_OFF}; nothing can be found again"),)
    engine = replace(engine, not_counting=CACHING_OFF if off else None, findings=findings if off else ())
    try:
        proof = prove_page(engine.client, page, stop, looks_up=not off)
    except NotThisEngineError as error:
        return replace(
            engine,
            scrape=None,
            cache=None,
            no_metrics=str(error),
            check=Check(name="metrics_page", status="failed", detail=error.reason),
            findings=foreign_page(error),
        )
    except OtherTrafficError as error:  # is told as ENGINE_NOT_IDLE, when the bench waits for rest
        return replace(engine, check=Check(name="metrics_page", status="not_checked", detail=str(error)))
    status: Literal["ok", "not_checked"] = "ok" if proof.not_checked is None else "not_checked"
    return replace(
        engine,
        scrape=proof.scrape,
        not_counting=engine.not_counting or proof.not_counting,
        check=Check(name="metrics_page", status=status, detail=proof.not_checked or proof.detail),
    )


def _model(client: ControlClient, wanted: str | None) -> tuple[str, int | None]:
    answer = client.get("/v1/models")
    where = client.engine.base_url
    if answer.status in (401, 403):
        raise ServiceError(f"{where}: {refusal(answer)}; set OPENAI_API_KEY")
    served = served_models(answer)
    if served is None:
        raise ServiceError(
            f"{where}/v1/models: {refusal(answer)}; is --engine-url the address of the engine?"
        )
    if not served:
        raise ServiceError(f"{where}/v1/models: names no model")
    name = wanted or next(iter(served))
    if name not in served:
        raise ServiceError(f"{where}: does not serve {name!r} but {named(served, ', ')}; correct --model")
    return name, served[name]


def _rank_labels(text: str, model: str, source: str) -> dict[str, int]:
    """The data-parallel ranks that the metrics page shows, by their label `engine`, numbered in its order."""
    names = {name for pair in PREFIX_CACHE_COUNTERS for name in (pair.queries, pair.hits)}
    labels = {
        sample.labels.get("engine", "")
        for sample in parse_exposition(text, source=source, buckets=False)
        if sample.name in names and sample.labels.get("model_name", model) == model
    }
    return {label: rank for rank, label in enumerate(sorted(labels, key=_in_order))}


def _in_order(label: str) -> tuple[str, int]:
    """`engine-10` comes after `engine-9`."""
    name = label.rstrip("0123456789")
    return name, decimal_number(label[len(name) :]) or 0
