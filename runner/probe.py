"""Probes: known texts whose hits are known, sent to one rank at a time and read back from its counters.

Sent twice, a probe must hit exactly its whole blocks: that proves that the rank counts for itself, that its cache works,
and what its unit of a hit is. Sent again after a reset it must miss: that proves the reset.
"""

import threading
from dataclasses import dataclass

from contract.errors import ServiceError
from contract.usage import Usage, read_usage
from prompts.tokenizer import Tokenizer
from runner.control import Answer, ControlClient, Scrape, refusal
from runner.counting import wait_until_counted
from runner.multimodal.bodies import chat_messages

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
    """What the rank's counters and the answer say of one sending.

    `cached_tokens`, `counted_hits` None: the answer, the counters do not report. `not_counting`: why the counters do not.
    """

    scrape: Scrape
    prompt_tokens: int
    cached_tokens: int | None
    counted_hits: int | None
    not_counting: str | None = None

    @property
    def hits(self) -> int | None:
        """Tokens that were found. Where the two tell different numbers the larger one: something was found, whatever the
        other says. An answer of a disaggregated decode instance (all tokens but the last) is not one of them."""
        if self.counted_hits is None or self.cached_tokens is None:
            return self.cached_tokens if self.counted_hits is None else self.counted_hits
        if self.cached_tokens == self.prompt_tokens - 1:
            return self.counted_hits
        return max(self.counted_hits, self.cached_tokens)

    @property
    def ledgers_differ(self) -> bool:
        return None not in (self.counted_hits, self.cached_tokens) and self.counted_hits != self.cached_tokens


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


def send_probe(
    client: ControlClient,
    probe: Probe,
    before: Scrape,
    stop: threading.Event,
    not_counting: str | None = None,
) -> ProbeResult:
    """Send the probe to its rank and wait until that rank, and no other, has counted it; else ServiceError.

    `not_counting`: why its counters are known to stand still; then nothing is waited for.
    """
    answer = ask(client, probe)
    usage = usage_of(answer)
    if usage.prompt_tokens is None:
        raise ServiceError(uncounted(probe.tokens, usage.impossible))
    if usage.prompt_tokens != probe.tokens:
        raise ServiceError(
            f"the engine counts {usage.prompt_tokens} tokens where tokenizer.path makes {probe.tokens}; "
            "set tokenizer.path to the engine's own tokenizer and prepare again"
        )
    if not_counting is not None:
        return ProbeResult(client.scrape(), probe.tokens, usage.cached_tokens, None, not_counting)
    counted = wait_until_counted(client, before, probe.tokens, probe.rank, stop)
    hits = None if counted.hits is None else counted.hits.get(probe.rank)
    return ProbeResult(counted.scrape, probe.tokens, usage.cached_tokens, hits, counted.not_counting)


def uncounted(sent: int, impossible: str | None = None) -> str:
    """What is to be done about an answer that does not report how many tokens its prompt had."""
    why = f" ({impossible})" if impossible else ""
    return (
        f"the engine's answer to {sent} tokens has no usage.prompt_tokens{why}, so whether it reads a prompt as the same "
        "tokens cannot be known; send to an engine, or through a proxy, that passes usage on"
    )


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
