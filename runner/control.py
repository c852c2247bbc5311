"""Control calls to an engine: everything but the load itself. One request at a time."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from contract.errors import NotThisEngineError, ServiceError
from contract.foreign import ForeignDocumentError, json_document, name, token_count, token_ids
from contract.foreign_text import presentable
from contract.http_call import CallError, call
from contract.redaction import learn
from contract.scrapes import join_scrapes
from enginemetrics.difference import another_process
from enginemetrics.scrape import fetch, redirected
from enginemetrics.snapshot import EngineSnapshot, read_snapshot
from runner.engines.engine import Engine

RANK_HEADER = "X-data-parallel-rank"
SESSION_HEADERS: Final = (
    "X-Session-ID",
    "X-Correlation-ID",
    "X-Session-Affinity",
    "X-SMG-Routing-Key",
    "X-Dynamo-Session-ID",
)
"""By which routers keep a session on one engine; engines take no notice."""
MOST_NAMED: Final = 20


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
        learn(api_key)
        self._seen: EngineSnapshot | None = None
        self._refused: NotThisEngineError | None = None

    def scrape(self, *, session: str | None = None) -> Scrape:
        """Fetch and read the metrics now, over a new connection; with `session` as a session of that name.

        Raises:
            NotThisEngineError: another process answers than before. From then on every scrape says so: which of the
                pages are the engine's cannot be told.
            ServiceError: there is no page, or it cannot be read.
        """
        if self._refused is not None:
            raise self._refused
        earlier = self._seen
        texts = fetch(
            self.engine.metrics_urls,
            api_key=self._api_key or None,
            logins=self.engine.logins,
            trust=self.engine.trust,
            timeout_seconds=self._timeout,
            headers=_session_headers(session),
            setting=self.engine.metrics_setting,
        )
        snapshot = read_snapshot(
            texts,
            model=self.engine.model,
            dp_size=self.engine.ranks,
            engine_label_map=self._label_map,
            sources=self.engine.metrics_urls,
        )
        other = None if earlier is None else another_process(earlier, snapshot)
        if other is not None:
            self._refused = NotThisEngineError(f"{', '.join(self.engine.metrics_urls)}: {other}")
            raise self._refused
        self._seen = snapshot
        return Scrape(join_scrapes(self.engine.metrics_urls, texts), snapshot)

    def complete(self, body: dict[str, Any], rank: int | None) -> Answer:
        """One completion that does not stream, on `rank` where one is given."""
        headers = {} if rank is None else {RANK_HEADER: str(rank)}
        return self.call("POST", self.engine.inference_url, json=body, headers=headers)

    def short_prompt(self, text: str, *, session: str) -> Answer:
        """A completion of one token, as a session of its own; may run beside others."""
        body = {"model": self.engine.model, "prompt": text, "max_tokens": 1, "temperature": 0}
        url = self.engine.base_url + "/v1/completions"
        headers = _session_headers(session)
        return self.call("POST", url, login_of=self.engine.inference_url, json=body, headers=headers)

    def get(self, path: str) -> Answer:
        return self.call("GET", self.engine.base_url + path)

    def call(self, method: str, url: str, *, login_of: str | None = None, **options: Any) -> Answer:
        """The answer, whatever its status; `options` are those of `contract.http_call.call`.

        `login_of`: another address whose login this one asks for, too.

        Raises:
            ServiceError: there is none, none that is whole within the time, or it leads elsewhere.
        """
        key, login = self._api_key or None, self.engine.logins.get(login_of or url)
        try:
            reply = call(
                method, url, seconds=self._timeout, key=key, login=login, trust=self.engine.trust, **options
            )
        except CallError as error:
            texts = {
                "tls": str(error),
                "timeout": f"{error}; is the engine busy, or service.timeout_seconds too short?",
                "unreachable": f"cannot be reached ({error}); start the engine or correct the address",
            }
            otherwise = f"no usable answer ({error}); is this the address of an engine?"
            raise ServiceError(f"{url}: {texts.get(error.kind, otherwise)}") from error
        if reply.leads_to is not None:
            raise ServiceError(redirected(url, reply))
        try:
            body = json_document(reply.content)
        except ForeignDocumentError:
            body = None
        return Answer(reply.status, body, reply.text)


def engine_version(client: ControlClient) -> str | None:
    """What the engine calls itself; None where it does not report, or tells what is no version."""
    answer = client.get("/version")
    return name(answer.body.get("version")) if isinstance(answer.body, dict) else None


def served_models(answer: Answer) -> dict[str, int | None] | None:
    """Of /v1/models: each model's name with its max_model_len, where that is told; None: this is no list of models."""
    entries = answer.body.get("data") if isinstance(answer.body, dict) else None
    if answer.status != 200 or not isinstance(entries, list):
        return None
    return {
        known: token_count(entry.get("max_model_len")) or None
        for entry in entries
        if isinstance(entry, dict) and (known := name(entry.get("id"))) is not None
    }


def named(models: Iterable[str], separator: str) -> str:
    """The first of these names, as a message lists them."""
    first = list(islice(models, MOST_NAMED + 1))
    return separator.join([*map(repr, first[:MOST_NAMED]), *["..."] * (len(first) > MOST_NAMED)])


def answered_tokens(answer: Answer) -> list[int] | None:
    """The token ids that /tokenize answers; None when it does not."""
    told = answer.body.get("tokens") if isinstance(answer.body, dict) else None
    return token_ids(told) if answer.status == 200 else None


def _session_headers(name: str | None) -> dict[str, str]:
    return {} if name is None else dict.fromkeys(SESSION_HEADERS, name)


def refusal(answer: Answer) -> str:
    """The server's own words for why it refused, on one line."""
    text = answer.text
    if isinstance(answer.body, dict):
        error = answer.body.get("error") or answer.body
        text = str(error.get("message", error)) if isinstance(error, dict) else str(error)
    return f"HTTP {answer.status}: {presentable(text) or 'an empty answer'}"
