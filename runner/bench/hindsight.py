"""After the load: what the engine made of the requests that were answered, and what the block model expects of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from contract.documents import whole_file
from contract.errors import ServiceError
from contract.records import RequestRecord
from runner.bench.expectation import Expected, Ids, SentRequest, expectations, modelled_cache
from runner.bench.prepare import PreparedBench
from runner.bench.stage import SentStage
from runner.bench.tokens import EngineTokens
from runner.workloads.plan import Request

EXPECTED_SCHEMA = pa.schema(
    [
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("prompt_tokens", pa.int64(), nullable=False),
        pa.field("least_cached_tokens", pa.int64()),
        pa.field("most_cached_tokens", pa.int64()),
    ]
)

ASKED_TOGETHER = 32

OnStep = Callable[[int, int], None]
"""Called with how many requests are done, and how many there are; may raise to end it."""


def expect(
    prepared: PreparedBench, stages: Sequence[SentStage], on_step: OnStep, no_metrics: str | None
) -> tuple[dict[str, Expected], str | None]:
    """What is expected of every answered request, by id, and why no hits are (or how far they can be relied on).

    `no_metrics`: why nothing is known of the cache that answered.
    """
    if prepared.tokens is None:
        return {}, "the engine has no /tokenize, so the tokens of whole prompts are not known here"
    cache = (
        modelled_cache(prepared.engine.ranks, prepared.engine.cache, prepared.engine.version)
        if no_metrics is None
        else f"which cache answered is not known: {no_metrics}"
    )
    sent = _sent(prepared, prepared.tokens, stages, on_step)
    try:
        if isinstance(cache, str):
            return {one.request_id: Expected(len(one.prompt), None, None) for one in sent}, cache
        expected = dict(expectations(sent, cache))
    except ServiceError as error:
        return {}, f"the engine does not tokenize any more ({error})"
    failed = sum(len(stage.records) - len(stage.answered) for stage in stages)
    return expected, f"{failed} requests failed; what they left in the cache is not known" if failed else None


def write_expected(path: Path, expected: Mapping[str, Expected], stages: Sequence[SentStage]) -> None:
    """One row for each answered request."""
    rows = [
        {
            "request_id": record.request_id,
            "stage": stage.name,
            "prompt_tokens": expected[record.request_id].prompt_tokens,
            "least_cached_tokens": expected[record.request_id].least,
            "most_cached_tokens": expected[record.request_id].most,
        }
        for stage in stages
        for record in stage.answered
        if record.request_id in expected
    ]
    with whole_file(path) as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=EXPECTED_SCHEMA), file)


def _sent(
    prepared: PreparedBench, tokens: EngineTokens, stages: Sequence[SentStage], on_step: OnStep
) -> Iterator[SentRequest]:
    """Answered requests in the order of their starts, with the tokens that the engine made of them."""
    by_id = {request.request_id: request for stage in stages for request in stage.requests}
    ordered = sorted(
        chain.from_iterable(stage.answered for stage in stages), key=lambda record: record.started_ns
    )
    following = _followers(ordered, by_id)
    ahead: dict[str, Ids] = {}

    def ask(request_ids: Iterable[str]) -> None:
        """Several at once: an engine that is asked one by one takes long over many."""
        new = [name for name in dict.fromkeys(request_ids) if name not in ahead]
        chats = [prepared.script.sent(by_id[name]) for name in new]
        ahead.update(zip(new, tokens.conversations(chats, prepared.plan.template_kwargs), strict=True))

    for start in range(0, len(ordered), ASKED_TOGETHER):
        on_step(start, len(ordered))
        part = ordered[start : start + ASKED_TOGETHER]
        names = [record.request_id for record in part]
        ask([*names, *(following[name] for name in names if name in following)])
        for record in part:
            follower = following.get(record.request_id)
            quoted = None if follower is None else ahead[follower]
            yield SentRequest(
                record.request_id, ahead.pop(record.request_id), record.completion_tokens or 1, quoted
            )


def _followers(ordered: list[RequestRecord], by_id: dict[str, Request]) -> dict[str, str]:
    """Request id -> the next request of its session, which quotes its answer; only of those that are remembered."""
    following: dict[str, str] = {}
    last: dict[str, str] = {}
    for record in ordered:
        request = by_id[record.request_id]
        if request.session is None:
            continue
        if request.session in last:
            following[last[request.session]] = record.request_id
        if request.remember:
            last[request.session] = record.request_id
    return following
