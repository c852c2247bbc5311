"""The ledgers that the same traffic must agree with, side by side. `LEDGERS` lists them: a further one is an entry there.

Each has hits and queries in tokens, per rank and in total. What one does not know is None with a reason; where two
differ, the most likely cause is named.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from analyzer.actual import hit_rate, reported, sum_known
from analyzer.prediction import Prediction
from analyzer.request_table import RequestTable
from contract.planned import UNKNOWN
from enginemetrics.difference import EngineDifference, RankDifference
from enginemetrics.snapshot import MetricNames

NO_SUCH_RANK = "the service chose the ranks, and the answers do not report which"


@dataclass(frozen=True)
class Tokens:
    """Hits and queries in tokens; what is None has its reason."""

    hits: int | None = None
    queries: int | None = None
    reason: str | None = None

    def document(self) -> dict[str, Any]:
        return {
            "hits": self.hits,
            "queries": self.queries,
            "hit_rate": hit_rate(self.hits, self.queries),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Ledger:
    """`source`: what hits and queries were read from. Of one that is made of answers: how many there were (`answers`),
    and how many of them did not say it (`answers_without`)."""

    total: Tokens
    ranks: Mapping[int, Tokens] = field(default_factory=dict)
    source: Mapping[str, str | None] = field(default_factory=dict)
    answers: int | None = None
    answers_without: int | None = None

    def document(self) -> dict[str, Any]:
        return {
            "total": self.total.document(),
            "by_dp": {str(rank): tokens.document() for rank, tokens in self.ranks.items()},
            "source": dict(self.source),
            **self.answers_document(),
        }

    def answers_document(self) -> dict[str, int | None]:
        if self.answers is None:
            return {}
        return {"answers": self.answers, "answers_without": self.answers_without}


def unknown_ledger(reason: str) -> Ledger:
    return Ledger(Tokens(reason=reason))


@dataclass(frozen=True)
class Page:
    """The engine's metrics page, before and after. `not_measurable`: why its counters give no hit rate."""

    difference: EngineDifference
    names: MetricNames
    block_size: int
    not_measurable: str | None


@dataclass(frozen=True)
class Answers:
    """What was sent, and what its answers said; `ranks` is how many the engine has."""

    requests: RequestTable
    ranks: int


@dataclass(frozen=True)
class Model:
    """What the block pool model predicts for the requests; `document` is its `prediction_document`."""

    document: Mapping[str, Any]
    prediction: Prediction
    sent: Answers


@dataclass(frozen=True)
class Traffic:
    """All that ledgers are read from. A text in the place of one: why it is not there."""

    page: Page | str
    answers: Answers | str
    model: Model | str


def counters_ledger(page: Page) -> Ledger:
    """The counters of the prefix cache itself."""
    return _per_rank(
        page.difference,
        lambda rank: _counted(rank, page.difference.unit, page.block_size, page.not_measurable),
        {"hits": page.names.hits, "queries": page.names.queries},
    )


def by_source_ledger(page: Page) -> Ledger:
    """Prompt tokens by where they came from."""
    names = page.names.ledgers
    by_source = names.get("prompt_tokens_by_source")
    hits = by_source and f'{by_source}{{source="local_cache_hit"}}'
    return _per_rank(page.difference, _by_source, {"hits": hits, "queries": names.get("prompt_tokens")})


def computed_ledger(page: Page) -> Ledger:
    """Prompt tokens that did not have to be computed."""
    names = page.names.ledgers
    computed, asked = names.get("prefill_kv_computed_tokens_sum"), names.get("request_prompt_tokens_sum")
    hits = asked and computed and f"{asked} - {computed}"
    return _per_rank(page.difference, _computed, {"hits": hits, "queries": asked})


def _per_rank(
    difference: EngineDifference, read: Callable[[RankDifference], Tokens], source: dict[str, str | None]
) -> Ledger:
    ranks = {rank.rank: read(rank) for rank in difference.ranks}
    reason = next((tokens.reason for tokens in ranks.values() if tokens.reason is not None), None)
    total = Tokens(
        sum_known([tokens.hits for tokens in ranks.values()]),
        sum_known([tokens.queries for tokens in ranks.values()]),
        reason if ranks else "no rank is in both scrapes",
    )
    return Ledger(total, ranks, source)


def _counted(rank: RankDifference, unit: str, block_size: int, not_measurable: str | None) -> Tokens:
    if not_measurable is not None:
        return Tokens(reason=not_measurable)
    reason = rank.unavailable.get("queries") or rank.unavailable.get("hits")
    if unit == "tokens":
        return Tokens(rank.hits, rank.queries, reason)
    # Hits are whole blocks, so they have an exact number of tokens; queries leave out each prompt's last, partial block.
    hits = None if rank.hits is None else rank.hits * block_size
    return Tokens(
        hits,
        None,
        reason or "the counter counts full blocks (vLLM 0.8.x), which leave out the rest of each prompt",
    )


def _by_source(rank: RankDifference) -> Tokens:
    parts = rank.prompt_tokens_by_source
    reason = rank.unavailable.get("prompt_tokens_by_source") or rank.unavailable.get("prompt_tokens")
    # A source that has served nothing yet may have no series.
    return Tokens(None if parts is None else parts.get("local_cache_hit", 0), rank.prompt_tokens, reason)


def _computed(rank: RankDifference) -> Tokens:
    asked, computed = rank.request_prompt_tokens_sum, rank.prefill_kv_computed_tokens_sum
    reason = rank.unavailable.get("prefill_kv_computed_tokens_sum") or rank.unavailable.get(
        "request_prompt_tokens_sum"
    )
    return Tokens(None if asked is None or computed is None else asked - computed, asked, reason)


def answers_ledger(answers: Answers) -> Ledger:
    """What the answers reported."""
    requests, ranks = answers.requests, answers.ranks

    def tokens(chosen: Any) -> Tokens:
        found = reported(requests, chosen)
        return Tokens(found["cached_tokens"], found["prompt_tokens"], found["reason"])

    unsaid = (requests.cached_tokens == UNKNOWN) | (requests.prompt_tokens == UNKNOWN)
    return Ledger(
        tokens(np.ones(requests.count, dtype=np.bool_)),
        {
            rank: Tokens(reason=NO_SUCH_RANK) if chosen is None else tokens(chosen)
            for rank, chosen in requests_of_ranks(requests, ranks).items()
        },
        {"hits": "usage.prompt_tokens_details.cached_tokens", "queries": "usage.prompt_tokens"},
        answers=int(requests.answered.sum()),
        answers_without=int((requests.answered & unsaid).sum()),
    )


def prediction_ledger(model: Model) -> Ledger:
    """The block-exact model."""
    document, prediction = model.document, model.prediction
    requests, ranks = model.sent.requests, model.sent.ranks
    total = Tokens(document["hit_tokens"], document["input_tokens"], document["reason"])

    def tokens(chosen: Any) -> Tokens:
        hits = prediction.tokens[chosen]
        if total.hits is None and (requests.void[chosen].any() or (hits == UNKNOWN).any()):
            return Tokens(reason=total.reason)
        return Tokens(int(hits.sum()), int(requests.plan.input_tokens[chosen].sum()))

    return Ledger(
        total,
        {
            rank: Tokens(reason=NO_SUCH_RANK) if chosen is None else tokens(chosen)
            for rank, chosen in requests_of_ranks(requests, ranks).items()
        },
        {"hits": "block pool model over token_ids.arrow", "queries": "token_ids.arrow"},
    )


def requests_of_ranks(requests: RequestTable, ranks: int) -> dict[int, Any]:
    """The requests of each rank; None where the service chose the rank."""
    if ranks == 1:
        return {0: np.ones(requests.count, dtype=np.bool_)}
    routed = bool((requests.plan.rank != UNKNOWN).all())
    return {rank: requests.plan.rank == rank if routed else None for rank in range(ranks)}


def _of_page(read: Callable[[Page], Ledger]) -> Callable[[Traffic], Ledger]:
    return lambda traffic: (
        unknown_ledger(traffic.page) if isinstance(traffic.page, str) else read(traffic.page)
    )


def _of_answers(traffic: Traffic) -> Ledger:
    answers = traffic.answers
    return unknown_ledger(answers) if isinstance(answers, str) else answers_ledger(answers)


def _of_model(traffic: Traffic) -> Ledger:
    return (
        unknown_ledger(traffic.model) if isinstance(traffic.model, str) else prediction_ledger(traffic.model)
    )


@dataclass(frozen=True)
class LedgerKind:
    """One ledger.

    Attributes:
        name: in documents.
        title: in report.html.
        row: in the table of a result, where it differs; None: it is the table's own actual rate.
        origin: page: the engine's metrics; answers; model: what should happen, by the plan alone.
        queries_as: its input tokens in `agreement.query_tokens`; None: they are no account of their own.
        includes: what its hits are, and what else is in them.
        known_from: the first release of vLLM that has it, with the metric; None: all that can be measured.
    """

    name: str
    title: str
    row: str | None
    origin: Literal["page", "answers", "model"]
    queries_as: str | None
    includes: str
    read: Callable[[Traffic], Ledger]
    known_from: tuple[str, str] | None = None


LEDGERS = (
    LedgerKind(
        name="counters",
        title="prefix-cache counters",
        row=None,
        origin="page",
        queries_as="counters",
        includes="lookups of the local prefix cache, of all who use the engine; a preempted request again",
        read=_of_page(counters_ledger),
    ),
    LedgerKind(
        name="by_source",
        title="prompt tokens by source",
        row="Hit Rate by Prompt Tokens by Source",
        origin="page",
        queries_as="by_source",
        includes="local hits of prompts that began to be answered; those of external caches stand beside them",
        read=_of_page(by_source_ledger),
        known_from=("0.16.0", "prompt_tokens_by_source"),
    ),
    LedgerKind(
        name="cached_tokens",
        title="answers (cached_tokens)",
        row="Hit Rate by Cached Tokens of Answers",
        origin="answers",
        queries_as="prompt_tokens",
        includes="local and external hits of this run's answered requests alone",
        read=_of_answers,
    ),
    LedgerKind(
        name="computed",
        title="computed prompt tokens",
        row="Hit Rate by Computed Prompt Tokens",
        origin="page",
        queries_as="computed",
        includes="local and external hits of finished requests",
        read=_of_page(computed_ledger),
        known_from=("0.13.0", "request_prefill_kv_computed_tokens"),
    ),
    LedgerKind(
        name="prediction",
        title="prediction (block-exact model)",
        row="Hit Rate by Prediction",
        origin="model",
        queries_as=None,
        includes="what a block pool of the engine's size and release finds of the plan; no external hits",
        read=_of_model,
    ),
)
"""The first whose quantity is known is the one that the others are compared with."""
NAMES = tuple(kind.name for kind in LEDGERS)
TITLES = {kind.name: kind.title for kind in LEDGERS}
ENGINE_PAGE = tuple(kind.name for kind in LEDGERS if kind.origin == "page")
KNOWN_FROM = {kind.name: kind.known_from for kind in LEDGERS if kind.known_from is not None}
MEASURED = (*ENGINE_PAGE, *(kind.name for kind in LEDGERS if kind.origin == "answers"))


def read_ledgers(traffic: Traffic) -> dict[str, Ledger]:
    """Every ledger by its name."""
    return {kind.name: kind.read(traffic) for kind in LEDGERS}


@dataclass(frozen=True)
class LedgerDifference:
    """`tokens`: the second ledger minus the first, in total; `by_dp` the same per rank, where it is not 0."""

    first: str
    second: str
    quantity: str
    tokens: int
    by_dp: Mapping[int, int]


def ledger_differences(ledgers: Mapping[str, Ledger]) -> list[LedgerDifference]:
    """Every ledger against the first one that knows the quantity. Equal means equal to the token, on every rank."""
    return [
        difference
        for quantity in ("queries", "hits")
        for difference in _differences_of(quantity, [(name, ledgers[name]) for name in NAMES])
    ]


def _differences_of(quantity: str, ledgers: Sequence[tuple[str, Ledger]]) -> list[LedgerDifference]:
    known = [(name, ledger) for name, ledger in ledgers if getattr(ledger.total, quantity) is not None]
    found = []
    for name, ledger in known[1:]:
        first_name, first = known[0]
        tokens = getattr(ledger.total, quantity) - getattr(first.total, quantity)
        by_dp = {
            rank: here - there
            for rank in sorted(ledger.ranks.keys() & first.ranks.keys())
            if (here := getattr(ledger.ranks[rank], quantity)) is not None
            and (there := getattr(first.ranks[rank], quantity)) is not None
            and here != there
        }
        if tokens or by_dp:
            found.append(LedgerDifference(first_name, name, quantity, tokens, by_dp))
    return found
