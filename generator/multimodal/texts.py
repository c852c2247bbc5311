"""Texts of exactly N tokens from the corpus, each of them unique."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from contract.errors import ScenarioError
from contract.token_ids import Int32Array
from prompts.corpus import Corpus, Selection, select_records
from prompts.tokenizer import Tokenizer

MOST_WINDOWS = 4096
LONGEST_TOKEN = 32
"""Characters, on average over a text; words are shorter."""
"""Windows tried in one record before it is given up."""


@dataclass(frozen=True)
class ExactText:
    """A text and its token ids, shape (N,), without what an engine puts around it."""

    text: str
    token_ids: Int32Array


def exact_texts(
    tokenizer: Tokenizer, corpus: Corpus, selection: Selection, *, count: int, tokens: int, seed: int
) -> Iterator[ExactText]:
    """`count` different texts that have `tokens` tokens each, without special tokens and white space at the ends.

    Every text is cut from a record of its own, repeated by line where it is too short: the first window of N tokens whose
    text is encoded to N tokens again and has not been taken yet. A record without one is passed over.

    Raises ScenarioError: fewer than `count` distinct records, or too few of them give a text.
    """
    pool = list(dict.fromkeys(select_records(corpus, selection, max(count, len(corpus)), seed)))
    if len(pool) < count:
        raise ScenarioError(
            f"{selection.place}: {len(pool)} different records of {corpus.path} for requests.count {count}; every "
            "request has a record of its own, so use a larger corpus or fewer requests"
        )
    taken: set[str] = set()
    for record in pool:
        text = _window(tokenizer, corpus.texts[record], tokens, taken)
        if text is None:
            continue
        taken.add(text.text)
        yield text
        if len(taken) == count:
            return
    raise ScenarioError(
        f"requests.input_length.value: only {len(taken)} of {len(pool)} records of {corpus.path} give a text of "
        f"exactly {tokens} tokens with {tokenizer.path}, {count} are needed; use another length, corpus or fewer "
        "requests"
    )


def _window(tokenizer: Tokenizer, record: str, tokens: int, taken: set[str]) -> ExactText | None:
    special = frozenset(tokenizer.special_token_ids)
    record = record[: LONGEST_TOKEN * (tokens + MOST_WINDOWS)]  # of a very long one, what all windows need
    once = len(tokenizer.encode(record))
    if not once:
        return None
    # One record more than needed: room to move the window over a whole record.
    repeats = -(-tokens // once) + 1
    ids = tokenizer.encode("\n".join([record] * repeats))
    last = min(len(ids) - tokens, MOST_WINDOWS)
    for start in range(last + 1):
        window = ids[start : start + tokens]
        text = tokenizer.decode(window)
        # Chat templates may trim a message, so there must be nothing to trim.
        if text in taken or text != text.strip() or not special.isdisjoint(window):
            continue
        again = tokenizer.encode(text)
        if len(again) == tokens and special.isdisjoint(again):
            return ExactText(text, np.array(again, dtype=np.int32))
    return None
