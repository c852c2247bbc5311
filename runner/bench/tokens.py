"""Counting tokens as the engine does: with its tokenizer where it is at hand, else by asking it."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from contract.errors import ScenarioError, ServiceError
from prompts.tokenizer import load_tokenizer
from prompts.words import Encoder
from runner.bench.engine import BenchEngine
from runner.control import ControlClient, refusal

LOGGER = logging.getLogger("hitlab.runner")
SAMPLE = "The quick brown fox jumps over 13 lazy dogs; 2,500 of them slept. They did not mind."

Chat = Sequence[Mapping[str, str]]


class EngineTokens:
    """An engine's /tokenize: of texts, and of whole conversations with its chat template."""

    def __init__(self, client: ControlClient, model: str) -> None:
        self._client = client
        self._model = model
        self.path = f"of the engine ({client.engine.base_url}/tokenize)"

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._ask({"prompt": text, "add_special_tokens": False}) for text in texts]

    def conversation(self, chat: Chat, template_kwargs: Mapping[str, Any]) -> npt.NDArray[np.int32]:
        """The prompt that the engine makes of a conversation, shape (n,).

        Raises:
            ServiceError: it refuses: no /tokenize, or no chat template.
        """
        more = {"chat_template_kwargs": dict(template_kwargs)} if template_kwargs else {}
        asked = {"messages": list(chat), "add_generation_prompt": True, **more}
        return np.array(self._ask(asked), dtype=np.int32)

    def frame_tokens(self, template_kwargs: Mapping[str, Any]) -> int:
        """Tokens in front of the text of a first user message."""
        one, other = (
            self.conversation([{"role": "user", "content": text}], template_kwargs).tolist()
            for text in ("yes", "17")
        )
        return next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)

    def _ask(self, body: Mapping[str, Any]) -> list[int]:
        url = self._client.engine.base_url + "/tokenize"
        answer = self._client.call("POST", url, json={"model": self._model, **body})
        tokens = answer.body.get("tokens") if isinstance(answer.body, dict) else None
        if answer.status != 200 or not isinstance(tokens, list):
            raise ServiceError(f"{url}: {refusal(answer)}")
        return tokens


def find_encoder(engine: BenchEngine, tokenizer: str | None) -> tuple[Encoder, EngineTokens | None]:
    """What counts texts, and the engine's own counting where it offers it.

    Args:
        tokenizer: as given; None: the model's name, where that is a folder of this machine.

    Raises:
        ScenarioError: the tokenizer cannot be loaded or is another one than the engine's; or there is none at all.
    """
    asked = EngineTokens(engine.client, engine.model)
    offered: EngineTokens | None = asked
    try:
        (by_engine,) = asked.encode_batch([SAMPLE])
    except ServiceError as error:
        LOGGER.info("the engine does not tokenize: %s", error)
        offered, by_engine = None, []
    path = tokenizer or (engine.model if Path(engine.model).is_dir() else None)
    if path is None:
        if offered is None:
            raise ScenarioError(
                f"--tokenizer: {engine.url} has no /tokenize, so the engine's tokenizer is needed here: give its "
                "directory, tokenizer.json or hub id"
            )
        return offered, offered
    local = load_tokenizer(path)
    if offered is not None and local.encode_batch([SAMPLE])[0] != by_engine:
        raise ScenarioError(
            f"--tokenizer {path}: makes other tokens than the engine does; give the engine's own, or none (it is asked)"
        )
    return local, offered
