"""Where the text lies in a request with images: what stands before it, all requests have in common.

Found by having the engine tokenize two conversations that differ in their whole text: they agree up to the text, and
again behind it. How many tokens stand before the text is then what is left of those that an answer reports, because
engines do not all write out the placeholders of an image when they tokenize.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from runner.control import ControlClient, answered_tokens
from runner.multimodal.bodies import chat_messages


@dataclass(frozen=True)
class TextPlaces:
    """`texts`: the engine's ids of each text, in its place. `tokens_after`: what stands behind it."""

    texts: tuple[list[int], ...]
    tokens_after: int


def find_texts(client: ControlClient, images: Sequence[str], texts: Sequence[str]) -> TextPlaces | str:
    """Where the texts lie in conversations with these images, or why that cannot be known.

    The first two must have no character in common at either end, so that no token of one is one of the other there.
    """
    told: list[list[int]] = []
    for text in texts:
        body = {"model": client.engine.model, "messages": chat_messages(images, text)}
        answer = client.call("POST", client.engine.base_url + "/tokenize", json=body)
        tokens = answered_tokens(answer)
        if tokens is None:
            return f"the engine does not tokenize conversations with images (/tokenize: HTTP {answer.status})"
        told.append(tokens)
    one, other = told[:2]
    before, after = _equal_at_the_start(one, other), _equal_at_the_start(one[::-1], other[::-1])
    return TextPlaces(tuple(ids[before : len(ids) - after] for ids in told), after)


def _equal_at_the_start(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
