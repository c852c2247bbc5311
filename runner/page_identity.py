"""Is the metrics page that of the engine that answers? A router hands out the page of one of several engines, by policy.

Asked in three ways, because none is enough: a router that tells how many engines it has; a page that is read several
times and must be that of one process; and a few short prompts, which the page must show to the token. Reads and prompts
have connections and session headers of their own, and the prompts go at the same time: whatever a router chooses by, it
has to choose here.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import uuid4

from contract.errors import NotThisEngineError, ServiceError
from contract.foreign import token_count
from contract.measurement import Finding
from contract.usage import read_usage
from enginemetrics.difference import subtract
from runner.control import Answer, ControlClient, Scrape, refusal
from runner.counting import wait_until_counted

READS = 4
PROMPTS = 8
READINESS = "/readiness"
"""vllm-router, sglang-router and smg answer `{"total_workers": 2, ...}` here; an engine has no such route."""


@dataclass(frozen=True)
class PageProof:
    """The page is the engine's, as far as it could be asked.

    `not_checked`: why the prompts could not be sent or read. `not_counting`: why the prefix-cache counters, which are the
    engine's, cannot be used all the same.
    """

    scrape: Scrape
    detail: str
    not_checked: str | None = None
    not_counting: str | None = None


def foreign_page(error: BaseException) -> tuple[Finding, ...]:
    """The finding that an error is: a page of another engine. None is left out."""
    return (Finding(code=error.code, message=error.reason),) if isinstance(error, NotThisEngineError) else ()


def prove_page(
    client: ControlClient, before: Scrape, stop: threading.Event, *, looks_up: bool = True
) -> PageProof:
    """Prove it, on an idle engine. `before`: its page a moment ago. `looks_up` False: its prefix caching is off.

    Raises:
        NotThisEngineError: it is another one's, or one of several engines'.
        OtherTrafficError: the engine is not idle. ServiceError: it cannot be asked.
    """
    _require_one_engine(client)
    before = _read_again(client, before)
    with ThreadPoolExecutor(PROMPTS) as pool:
        answers = list(pool.map(lambda _: _short_prompt(client), range(PROMPTS)))
    tokens = [_prompt_tokens(answer) for answer in answers]
    refused = next((a for a, count in zip(answers, tokens, strict=True) if count is None), None)
    if refused is not None:
        reason = {0: refused.text, 200: "an answer without usage.prompt_tokens"}.get(
            refused.status, refusal(refused)
        )
        scrape = _read_again(client, client.scrape())
        return PageProof(
            scrape, "", not_checked=f"short prompts were sent to {client.engine.base_url}: {reason}"
        )
    sent = sum(count for count in tokens if count is not None)
    counted = wait_until_counted(client, before, sent, None, stop, looks_up=looks_up)
    return PageProof(
        _read_again(client, counted.scrape),
        f"shows the {sent} tokens of {PROMPTS} short prompts, and is one process's in {2 * READS} reads",
        not_counting=counted.not_counting,
    )


def _require_one_engine(client: ControlClient) -> None:
    """A router that says how many engines it has must have as many pages."""
    answer = client.get(READINESS)
    engines = token_count(answer.body.get("total_workers")) if isinstance(answer.body, dict) else None
    pages = len(client.engine.metrics_urls)
    if answer.status == 200 and engines is not None and engines > pages:
        raise NotThisEngineError(
            f"{client.engine.base_url}{READINESS}: a router with {engines} engines answers here, and {pages} metrics "
            f"page{'s are' if pages > 1 else ' is'} named; name the page of every engine, or send to one engine"
        )


def _read_again(client: ControlClient, first: Scrape) -> Scrape:
    """The last of several reads: nothing may have fallen or begun anew meanwhile."""
    last = first
    for _ in range(READS):
        current = client.scrape(session=_new_name())
        findings = subtract(last.snapshot, current.snapshot).findings
        if findings:
            raise NotThisEngineError(
                f"{', '.join(client.engine.metrics_urls)}: read twice, it is not one process's page: {findings[0].seen}; "
                "several engines answer here in turn, so name the page of every engine, or send to one engine"
            )
        last = current
    return last


def _short_prompt(client: ControlClient) -> Answer:
    """Shorter than a block, so that it leaves nothing in the cache, and like no other text."""
    name = _new_name()
    try:
        return client.short_prompt(name, session=name)
    except ServiceError as error:
        return Answer(0, None, str(error))


def _prompt_tokens(answer: Answer) -> int | None:
    usage = answer.body.get("usage") if answer.status == 200 and isinstance(answer.body, dict) else None
    return read_usage(usage).prompt_tokens or None


def _new_name() -> str:
    return uuid4().hex[:8]
