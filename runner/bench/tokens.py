"""Counting tokens as the engine does: with its tokenizer where it is at hand, else by asking it, else about."""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from contract.errors import ScenarioError, ServiceError
from prompts.tokenizer import Tokenizer, load_tokenizer
from prompts.words import AboutTexts, Texts, WordTexts
from runner.bench.engine import BenchEngine
from runner.control import ControlClient, answered_tokens, refusal

LOGGER = logging.getLogger("hitlab.runner")
SAMPLE = "The quick brown fox jumps over 13 lazy dogs; 2,500 of them slept. They did not mind."
ASKED_AT_ONCE = 8
PROBE_CHARACTERS = (400, 4000)

Chat = Sequence[Mapping[str, str]]
Ids = npt.NDArray[np.int32]


class EngineTokens:
    """An engine's /tokenize: of texts, and of whole conversations with its chat template. Several are asked at once."""

    def __init__(self, client: ControlClient, model: str) -> None:
        self._client = client
        self._model = model
        self.path = f"of the engine ({client.engine.base_url}/tokenize)"

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._ask_all([{"prompt": text, "add_special_tokens": False} for text in texts])

    def conversation(self, chat: Chat, template_kwargs: Mapping[str, Any]) -> Ids:
        """The prompt that the engine makes of a conversation, shape (n,). Raises as `conversations` does."""
        return self.conversations([chat], template_kwargs)[0]

    def conversations(self, chats: Sequence[Chat], template_kwargs: Mapping[str, Any]) -> list[Ids]:
        """The prompts that the engine makes of conversations.

        Raises:
            ServiceError: it refuses: no /tokenize, or no chat template.
        """
        more = {"chat_template_kwargs": dict(template_kwargs)} if template_kwargs else {}
        asked = [{"messages": list(chat), "add_generation_prompt": True, **more} for chat in chats]
        return [np.array(ids, dtype=np.int32) for ids in self._ask_all(asked)]

    def frame_tokens(self, template_kwargs: Mapping[str, Any]) -> int:
        """Tokens in front of the text of a first user message."""
        one, other = (
            ids.tolist()
            for ids in self.conversations(
                [[{"role": "user", "content": text}] for text in ("yes", "17")], template_kwargs
            )
        )
        frame = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        if frame is None:
            raise ServiceError(f"{self._client.engine.base_url}/tokenize: makes the same tokens of two texts")
        return frame

    def _ask_all(self, bodies: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        if len(bodies) == 1:
            return [self._ask(bodies[0])]
        with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="tokenize") as pool:
            return list(pool.map(self._ask, bodies))

    def _ask(self, body: Mapping[str, Any]) -> list[int]:
        url = self._client.engine.base_url + "/tokenize"
        answer = self._client.call("POST", url, json={"model": self._model, **body})
        tokens = answered_tokens(answer)
        if tokens is None:
            raise ServiceError(f"{url}: {refusal(answer)}")
        return tokens


@dataclass(frozen=True)
class Counting:
    """How texts get their lengths.

    Attributes:
        tokenizer: what counts, for the record.
        tokens: the engine's own counting; None where it offers none.
        note: what a reader of the numbers has to know.
    """

    texts: Texts
    tokenizer: str
    tokens: EngineTokens | None
    note: str | None = None


def find_counting(engine: BenchEngine, tokenizer: str | None, seed: int, *, exact: str | None) -> Counting:
    """The tokenizer that was named, else the engine's /tokenize, else a tokenizer of the served model's name, else about.

    Args:
        exact: the workload that cannot do without exact lengths; None: it can.

    Raises:
        ScenarioError: the named tokenizer cannot be loaded or is another one than the engine's; or `exact` and none.
        ServiceError: the engine refuses the request that is counted by.
    """
    offered, by_engine = _offered(engine)
    if tokenizer is None and Path(engine.model).is_dir():
        tokenizer = engine.model
    if tokenizer is not None:
        local = load_tokenizer(tokenizer)
        if offered is not None and local.encode_batch([SAMPLE])[0] != by_engine:
            raise _another(tokenizer, "give the engine's own, or none (it is asked)")
        if offered is None and _counts_as(engine, local) is False:
            raise _another(tokenizer, "give the engine's own")
        return Counting(WordTexts(local, seed), local.path, offered)
    if offered is not None:
        return Counting(WordTexts(offered, seed), offered.path, offered)
    try:
        named = load_tokenizer(engine.model)
    except ScenarioError as error:
        reason = f"{engine.model!r} is no tokenizer on this machine or on the model hub"
        LOGGER.info("no tokenizer of the served model's name: %s", error)
    else:
        if _counts_as(engine, named) is not False:
            return Counting(WordTexts(named, seed), named.path, None)
        reason = f"the tokenizer {engine.model!r} counts otherwise than the engine does"
    if exact is not None:
        raise ScenarioError(
            f"--tokenizer: {engine.url} has no /tokenize, and {reason}; {exact} needs the engine's tokenizer: give its "
            "directory, tokenizer.json or hub id"
        )
    rate = _tokens_per_character(engine)
    note = (
        f"lengths are about those asked for: the engine has no /tokenize, and {reason} ({rate:.3f} tokens per character "
        "by usage.prompt_tokens of a first answer); --tokenizer makes them exact"
    )
    return Counting(AboutTexts(rate, seed), f"none ({rate:.3f} tokens per character)", None, note)


def _another(tokenizer: str, advice: str) -> ScenarioError:
    return ScenarioError(f"--tokenizer {tokenizer}: makes other tokens than the engine does; {advice}")


def _offered(engine: BenchEngine) -> tuple[EngineTokens | None, list[int]]:
    """The engine's own counting, and what it makes of the sample."""
    asked = EngineTokens(engine.client, engine.model)
    try:
        (ids,) = asked.encode_batch([SAMPLE])
    except ServiceError as error:
        LOGGER.info("the engine does not tokenize: %s", error)
        return None, []
    return asked, ids


def _counts_as(engine: BenchEngine, tokenizer: Tokenizer) -> bool | None:
    """Whether two prompts differ by as many tokens for the engine as for `tokenizer`; None: it does not report.

    Both begin and end alike, so that what the chat template adds is the same in both.
    """
    short, long = _probes()
    try:
        by_engine = _prompt_tokens(engine, long) - _prompt_tokens(engine, short)
    except ServiceError as error:
        LOGGER.info("the tokenizer was not compared with the engine's: %s", error)
        return None
    one, other = (len(ids) for ids in tokenizer.encode_batch([short, long]))
    return by_engine == other - one


def _tokens_per_character(engine: BenchEngine) -> float:
    short, long = _probes()
    rate = (_prompt_tokens(engine, long) - _prompt_tokens(engine, short)) / (len(long) - len(short))
    if rate <= 0:
        raise ServiceError(f"{engine.url}: counts no more tokens for a long prompt than for a short one")
    return rate


def _probes() -> tuple[str, str]:
    """Two texts of the words that prompts are made of."""
    texts = AboutTexts(1.0, 0)
    short, long = (texts.text(f"probe/{length}", length) for length in PROBE_CHARACTERS)
    return f"Begin {short} end.", f"Begin {long} end."


def _prompt_tokens(engine: BenchEngine, text: str) -> int:
    """As the engine counts a conversation of one message. Raises ServiceError when it does not say."""
    body = {
        "model": engine.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1,
        "temperature": 0.0,
    }
    answer = engine.client.complete(body, None)
    if answer.status != 200:
        raise ServiceError(f"{engine.url}: a first request, to count tokens by, got {refusal(answer)}")
    usage = answer.body.get("usage") if isinstance(answer.body, dict) else None
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if not isinstance(count, int):
        raise ServiceError(
            f"{engine.url}: answers without usage.prompt_tokens; the bench cannot count its tokens"
        )
    return count
