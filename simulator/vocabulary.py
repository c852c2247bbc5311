"""What the simulated model says: words of the tokenizer, chosen by the prompt and nothing else."""

import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

_WORDS = 512
_STRIDE = 151  # a prime: no answer shorter than the list repeats a word


class Decoder(Protocol):
    """The part of a tokenizer that answers need."""

    @property
    def vocab_size(self) -> int: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class Vocabulary:
    """Tokens that read well on their own, and the text of each."""

    def __init__(self, tokenizer: Decoder) -> None:
        self._words = _readable(tokenizer)

    def answer_to(self, prompt: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Callable[[int], int]:
        """Function from n to the n-th token of the answer; equal prompts get equal answers."""
        ids = list(self._words)
        seed = zlib.crc32(np.ascontiguousarray(prompt).data)
        return lambda n: ids[(seed + n * _STRIDE) % len(ids)]

    def text(self, token_id: int) -> str:
        return self._words[token_id]


def _readable(tokenizer: Decoder) -> dict[int, str]:
    """Up to `_WORDS` tokens that decode to a space and a word; any others when there are too few of them.

    Every text is decoded behind another token, because some tokenizers drop a leading space at the start.
    """
    words: dict[int, str] = {}
    others: dict[int, str] = {}
    anchor = 0
    before = len(tokenizer.decode([anchor]))
    for token_id in range(1, tokenizer.vocab_size):
        text = tokenizer.decode([anchor, token_id])[before:]
        if text[:1] == " " and len(text) > 2 and text[1:].isascii() and text[1:].isalpha():
            words[token_id] = text
            if len(words) == _WORDS:
                return words
        elif len(others) < _WORDS:
            others[token_id] = text
    return words or others
