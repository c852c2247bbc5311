"""Probes: known texts whose hits are known, sent to one rank at a time and read back from its counters.

Sent twice, a probe must hit exactly its whole blocks: that proves that the rank counts for itself, that its cache works,
and what its unit of a hit is. Sent again after a reset it must miss: that proves the reset.
"""

import threading
import time
from dataclasses import dataclass

from contract.errors import ServiceError
from contract.usage import Usage, read_usage
from enginemetrics.difference import subtract
from prompts.tokenizer import Tokenizer
from runner.control import Answer, ControlClient, Scrape, refusal
from runner.multimodal.bodies import chat_messages
from runner.settle import POLL_SECONDS

WAIT_SECONDS = 10.0
NATURAL_CHARACTERS = 400
MOST_PIECES = 2000
PROBE_OUTPUT_TOKENS = 1


@dataclass(frozen=True)
class Probe:
    """A text for one rank, behind `images` (data URLs) when there are any, and how many tokens that has on the server."""

    rank: int
    text: str
    tokens: int
    images: tuple[str, ...] = ()

    def expected_hits(self, match_unit: int) -> int:
        """Tokens that the second sending finds: whole units, never the last token (vllm.md E.5)."""
        return (self.tokens - 1) // match_unit * match_unit


@dataclass(frozen=True)
class ProbeResult:
    """What the rank's counters and the answer say of one sending. `cached_tokens` None: the engine does not tell."""

    scrape: Scrape
    prompt_tokens: int | None
    cached_tokens: int | None
    counted_hits: int | None

    @property
    def hits(self) -> int | None:
        return self.counted_hits if self.counted_hits is not None else self.cached_tokens


def make_probe(
    rank: int, tokenizer: Tokenizer, samples: list[str], match_unit: int, max_model_len: int | None
) -> Probe:
    """Begins like no prompt, so it shares no block with any; goes on with natural text.

    Longer than two units, where the engine takes that much: one unit missing is then told from none found.
    """
    text = f"prefix-cache-capability-probe-{rank}"
    tokens = len(tokenizer.encode_for_server(text))
    for piece in range(MOST_PIECES):
        longer = text + " " + samples[(rank + piece) % len(samples)][-NATURAL_CHARACTERS:]
        count = len(tokenizer.encode_for_server(longer))
        if max_model_len is not None and count >= max_model_len:
            break
        text, tokens = longer, count
        if tokens > 2 * match_unit + 1:
            break
    return Probe(rank, text, tokens)


def send_probe(client: ControlClient, probe: Probe, before: Scrape, stop: threading.Event) -> ProbeResult:
    """Send the probe to its rank and wait until that rank, and no other, has counted it; else ServiceError."""
    answer = ask(client, probe)
    usage = usage_of(answer)
    if usage.prompt_tokens != probe.tokens:
        raise ServiceError(
            f"the engine counts {usage.prompt_tokens} tokens where tokenizer.path makes {probe.tokens}; "
            "set tokenizer.path to the engine's own tokenizer and prepare again"
        )
    return _counted(client, probe, before, usage.cached_tokens, stop)


def ask(client: ControlClient, probe: Probe) -> Answer:
    """The engine's answer to the probe, one token long. Raises ServiceError when there is none."""
    content = (
        {"messages": chat_messages(probe.images, probe.text)} if probe.images else {"prompt": probe.text}
    )
    body = {"model": client.engine.model, **content, "max_tokens": PROBE_OUTPUT_TOKENS, "temperature": 0}
    answer = client.complete(body, probe.rank if client.engine.ranks > 1 else None)
    if answer.status != 200:
        hint = "; correct service.dp_size" if "data_parallel_rank" in answer.text else ""
        raise ServiceError(f"{client.engine.inference_url}: rank {probe.rank}: {refusal(answer)}{hint}")
    return answer


def usage_of(answer: Answer) -> Usage:
    """What the answer to a probe says of its tokens. Raises ServiceError when that cannot be."""
    usage = read_usage(
        answer.body.get("usage") if isinstance(answer.body, dict) else None, PROBE_OUTPUT_TOKENS
    )
    if usage.impossible is not None:
        raise ServiceError(f"the engine's answer to a probe cannot be: {usage.impossible}")
    return usage


def _counted(
    client: ControlClient, probe: Probe, before: Scrape, cached_tokens: int | None, stop: threading.Event
) -> ProbeResult:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        after = client.scrape()
        difference = subtract(before.snapshot, after.snapshot)
        if difference.findings:
            raise ServiceError(difference.findings[0].message)
        moved = {change.rank: change.queries for change in difference.ranks if change.queries != 0}
        if difference.unit == "blocks" and set(moved) <= {probe.rank}:
            return ProbeResult(after, probe.tokens, cached_tokens, None)
        if moved == {probe.rank: probe.tokens}:
            hits = next(change.hits for change in difference.ranks if change.rank == probe.rank)
            return ProbeResult(after, probe.tokens, cached_tokens, hits)
        elsewhere = set(moved) - {probe.rank}
        if elsewhere:
            raise ServiceError(
                f"the probe for rank {probe.rank} was counted on rank {min(elsewhere)} ({moved}); the engine ignores "
                "X-data-parallel-rank, its labels need service.engine_label_map, or other traffic is there"
            )
        if time.monotonic() > deadline or stop.is_set():
            raise ServiceError(
                f"rank {probe.rank} counted {moved.get(probe.rank, 0)} of the probe's {probe.tokens} tokens within "
                f"{WAIT_SECONDS:g} s; is prefix caching on, does service.metrics_url belong to this engine, and is "
                "nobody else using it?"
            )
        stop.wait(POLL_SECONDS)
