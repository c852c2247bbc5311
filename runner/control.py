"""Control calls to an engine: everything but the load itself. One request at a time, with `requests`."""

from dataclasses import dataclass
from typing import Any

import requests
from requests.auth import HTTPBasicAuth

from contract.errors import ServiceError
from contract.foreign_text import presentable
from contract.redaction import learn
from contract.scrapes import join_scrapes
from enginemetrics.scrape import fetch, redirected
from enginemetrics.snapshot import EngineSnapshot, read_snapshot
from runner.engines.engine import Engine

RANK_HEADER = "X-data-parallel-rank"


@dataclass(frozen=True)
class Scrape:
    """The metrics of all addresses at one moment, as one text (`contract.scrapes`), and what they say.

    Nothing is redacted yet: `MeasurementRecord.keep_scrape` does that.
    """

    text: str
    snapshot: EngineSnapshot


@dataclass(frozen=True)
class Answer:
    """An HTTP answer as it came. `body` is the parsed JSON, or None when it is not JSON."""

    status: int
    body: Any
    text: str


class ControlClient:
    """Talks to one engine. Proxies of the environment are not used, redirects not followed: they would lead to another
    engine, and turn a POST into a GET."""

    def __init__(
        self,
        engine: Engine,
        *,
        api_key: str,
        timeout_seconds: float,
        engine_label_map: dict[str, int],
    ) -> None:
        self.engine = engine
        self._api_key = api_key
        self._timeout = timeout_seconds
        self._label_map = engine_label_map
        self._session = requests.Session()
        self._session.trust_env = False
        learn(api_key)
        if api_key:
            self._session.headers["Authorization"] = f"Bearer {api_key}"

    def close(self) -> None:
        self._session.close()

    def scrape(self) -> Scrape:
        """Fetch and read the metrics now."""
        texts = fetch(
            self.engine.metrics_urls,
            api_key=self._api_key or None,
            logins=self.engine.logins,
            timeout_seconds=self._timeout,
        )
        snapshot = read_snapshot(
            texts,
            model=self.engine.model,
            dp_size=self.engine.ranks,
            engine_label_map=self._label_map,
            sources=self.engine.metrics_urls,
        )
        return Scrape(join_scrapes(self.engine.metrics_urls, texts), snapshot)

    def complete(self, body: dict[str, Any], rank: int | None) -> Answer:
        """One completion that does not stream, on `rank` where one is given."""
        headers = {} if rank is None else {RANK_HEADER: str(rank)}
        return self.call("POST", self.engine.inference_url, json=body, headers=headers)

    def get(self, path: str) -> Answer:
        return self.call("GET", self.engine.base_url + path)

    def call(self, method: str, url: str, **options: Any) -> Answer:
        """The answer, whatever its status. Raises ServiceError when there is none, or it leads elsewhere."""
        login = self.engine.logins.get(url)
        auth = None if login is None else HTTPBasicAuth(*(part.encode() for part in login))
        try:
            response = self._session.request(
                method, url, timeout=self._timeout, allow_redirects=False, auth=auth, **options
            )
        except requests.Timeout as error:
            raise ServiceError(
                f"{url}: no answer within {self._timeout:g} s; is the engine busy, or service.timeout_seconds too short?"
            ) from error
        except requests.ConnectionError as error:
            raise ServiceError(
                f"{url}: cannot be reached; start the engine or correct the address"
            ) from error
        except requests.RequestException as error:
            raise ServiceError(f"{url}: {presentable(str(error))}") from error
        if response.is_redirect:
            raise ServiceError(redirected(url, response))
        try:
            body = response.json()
        except requests.JSONDecodeError:
            body = None
        return Answer(response.status_code, body, response.text)


def refusal(answer: Answer) -> str:
    """The server's own words for why it refused, on one line."""
    text = answer.text
    if isinstance(answer.body, dict):
        error = answer.body.get("error", answer.body)
        text = str(error.get("message", error)) if isinstance(error, dict) else str(error)
    return f"HTTP {answer.status}: {presentable(text)}"
