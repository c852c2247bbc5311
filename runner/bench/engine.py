"""The engine of a bench: its address, its model, and what it tells about itself."""

from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from contract.errors import ScenarioError, ServiceError
from enginemetrics.exposition import parse_exposition
from enginemetrics.names import PREFIX_CACHE_COUNTERS
from enginemetrics.scrape import fetch
from enginemetrics.snapshot import CacheConfig
from runner.control import ControlClient, Scrape, engine_version, named, refusal, served_models
from runner.engines.engine import Engine

CHAT = "/v1/chat/completions"
CONTROL_SECONDS = 60.0


@dataclass(frozen=True)
class BenchEngine:
    """An engine that answered.

    Attributes:
        client: for all but the load.
        scrape: its metrics at the beginning; None where it has none that can be read, and then `no_metrics` says why.
        cache: of its first rank; None where it does not tell.
    """

    client: ControlClient
    model: str
    version: str | None
    max_model_len: int | None
    scrape: Scrape | None
    no_metrics: str | None
    cache: CacheConfig | None

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


def find_engine(url: str, model: str | None, *, api_key: str) -> BenchEngine:
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
    )

    def client_of(found: Engine) -> ControlClient:
        return ControlClient(found, api_key=api_key, timeout_seconds=CONTROL_SECONDS, engine_label_map={})

    asking = client_of(engine)
    served, max_model_len = _model(asking, model)
    version = engine_version(asking)
    engine = replace(engine, model=served)
    scrape: Scrape | None = None
    no_metrics: str | None = None
    try:
        pages = fetch(engine.metrics_urls, api_key=api_key or None, timeout_seconds=CONTROL_SECONDS)
        engine = replace(engine, ranks=_ranks(pages[0], served, engine.metrics_urls[0]))
        client = client_of(engine)
        scrape = client.scrape()
    except ServiceError as error:
        no_metrics = str(error)
        client = client_of(engine)
    return BenchEngine(
        client=client,
        model=served,
        version=version,
        max_model_len=max_model_len,
        scrape=scrape,
        no_metrics=no_metrics,
        cache=None if scrape is None else scrape.snapshot.ranks[0].cache_config,
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


def _ranks(text: str, model: str, source: str) -> int:
    """How many data-parallel ranks the metrics page shows."""
    names = {name for pair in PREFIX_CACHE_COUNTERS for name in (pair.queries, pair.hits)}
    labels = {
        sample.labels.get("engine", "")
        for sample in parse_exposition(text, source=source, buckets=False)
        if sample.name in names and sample.labels.get("model_name", model) == model
    }
    return max(1, len(labels))
