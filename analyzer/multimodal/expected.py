"""The prefix hits to expect of requests that begin with the same image: block arithmetic, nothing measured.

All requests have the tokens in front of their text in common. On a rank whose cache was empty the first request finds
nothing; every later one finds the whole blocks of the common part, and of its text as far as an earlier one began with
the same tokens. Which rank a request went to is known with one rank only: with several, what texts have in common is a
range, and how many requests found nothing is the number of ranks that served any.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzer.request_table import Flags, RequestTable
from contract.measurement import ImageRecord
from contract.planned import UNKNOWN, Integers
from contract.token_ids import Int32Array

SHOWN = 20


@dataclass(frozen=True)
class Expected:
    """Tokens per request, in final order, once its rank has seen the image: `least` to `most`.

    `firsts`: requests that find nothing, one for each rank that served any; None: not known. `reason`: why `total` is
    not known.
    """

    least: Integers
    most: Integers
    firsts: int | None
    prompt_tokens: int | None
    reason: str | None = None

    @property
    def total(self) -> int | None:
        """Hit tokens of all requests; None where the parts are ranges or the firsts are not known."""
        if self.reason is not None or self.firsts is None:
            return None
        return int(self.least.sum()) - self.firsts * int(self.least.min())


def expect(
    record: ImageRecord | None,
    requests: RequestTable,
    texts: Iterable[Int32Array],
    queries: Mapping[int, int | None],
) -> Expected:
    """`queries`: prefix-cache queries that each rank counted in the load."""
    nothing = np.full(requests.count, UNKNOWN, dtype=np.int64)
    if record is None:
        return Expected(
            nothing, nothing, None, None, "the run ended before its probes showed what requests share"
        )
    if record.shared_tokens is None or record.tokens_before_text is None or record.match_unit is None:
        return Expected(nothing, nothing, None, record.prompt_tokens, record.reason)
    least = np.full(requests.count, record.shared_tokens, dtype=np.int64)
    most = _most(record, list(texts), _order(requests), record.match_unit, record.tokens_before_text)
    ranks = len(queries)
    reason = None
    if ranks == 1:
        least = most  # one rank sees all texts, in the order in which they were sent
    elif (least != most).any():
        reason = (
            f"{int((least != most).sum())} texts begin like another one for a whole block, and the answers do not report "
            "the ranks"
        )
    firsts = _firsts(record, queries)
    if firsts is None:
        reason = reason or "the counters do not report how many ranks served requests"
    if requests.failed or requests.retried:
        reason = f"{requests.failed} requests failed and {requests.retried} attempts were repeated"
    return Expected(least, most, firsts, record.prompt_tokens, reason)


def _order(requests: RequestTable) -> Integers:
    """Positions by the time they were sent; what was never sent comes last."""
    sent = requests.last != UNKNOWN
    started = np.full(requests.count, np.iinfo(np.int64).max, dtype=np.int64)
    started[sent] = requests.attempts.started_ns[requests.last[sent]]
    return np.argsort(started, kind="stable")


def _most(record: ImageRecord, texts: list[Int32Array], order: Integers, unit: int, before: int) -> Integers:
    """As if one rank had served all: the common part, and every further block that an earlier request had as well."""
    most = np.full(len(texts), record.shared_tokens, dtype=np.int64)
    limit = (record.prompt_tokens - 1) // unit * unit
    first_end = (before // unit + 1) * unit - before
    seen: set[bytes] = set()
    for position in order.tolist():
        text = texts[position]
        hits, found = before // unit * unit, True
        for end in range(first_end, len(text) + 1, unit):
            name = text[:end].tobytes()
            found = found and name in seen
            hits += unit * found
            seen.add(name)
        most[position] = max(0, min(hits, limit) - unit * record.drops_last_block)
    return most


def _firsts(record: ImageRecord, queries: Mapping[int, int | None]) -> int | None:
    if record.primed:
        return 0
    if None in queries.values() or not queries:
        return None if len(queries) != 1 else 1
    return sum(bool(counted) for counted in queries.values())


def firsts_found(expected: Expected, requests: RequestTable) -> Flags:
    """The requests that found nothing because they were the first of their rank, as far as there may be such."""
    none = requests.answered & (requests.cached_tokens == 0) & (expected.least > 0)
    first: Flags = np.zeros(requests.count, dtype=np.bool_)
    first[[position for position in _order(requests).tolist() if none[position]][: expected.firsts or 0]] = (
        True
    )
    return first


def expected_document(
    expected: Expected, record: ImageRecord | None, requests: RequestTable
) -> dict[str, Any]:
    """`expected` of the analysis."""
    total, prompt = expected.total, expected.prompt_tokens
    queries = None if prompt is None else prompt * requests.count
    known = record is not None and record.shared_tokens is not None
    return {
        "prompt_tokens_per_request": prompt,
        "tokens_before_text": record.tokens_before_text if record else None,
        "match_unit": record.match_unit if record else None,
        "shared_tokens_per_request": record.shared_tokens if record else None,
        "requests_that_find_nothing": expected.firsts,
        "input_tokens": queries,
        "hit_tokens": total,
        "hit_tokens_at_least": _bound(expected, expected.least) if known else None,
        "hit_tokens_at_most": _bound(expected, expected.most) if known else None,
        "hit_rate": total / queries if total is not None and queries else None,
        "reason": expected.reason,
    }


def _bound(expected: Expected, column: Integers) -> int | None:
    if expected.firsts is None:
        return None
    return int(column.sum()) - expected.firsts * int(expected.least.min())


def compared(expected: Expected, requests: RequestTable) -> dict[str, Any]:
    """`actual.requests`: how many requests found what was to be expected, and the first that did not."""
    chosen = (
        requests.answered & ~requests.void & (requests.cached_tokens != UNKNOWN) & (expected.least != UNKNOWN)
    )
    first = firsts_found(expected, requests)
    fits = first | ((requests.cached_tokens >= expected.least) & (requests.cached_tokens <= expected.most))
    differing = np.flatnonzero(chosen & ~fits)
    return {
        "compared": int(chosen.sum()),
        "equal": int(chosen.sum()) - int(differing.size),
        "found_nothing": int(first.sum()),
        "differing": [
            {
                "request_id": requests.request_id(position),
                "sequence_index": position,
                "expected_hit_tokens": int(expected.least[position]),
                "cached_tokens": int(requests.cached_tokens[position]),
            }
            for position in differing[:SHOWN].tolist()
        ],
        "differing_requests": int(differing.size),
    }


def together_with_the_first(expected: Expected, requests: RequestTable) -> bool:
    """Whether all that differ were sent before the first answer was there: the image was still being computed."""
    first = firsts_found(expected, requests)
    if not first.any():
        return False
    last = requests.last[first]
    ended = requests.attempts.started_ns[last] + requests.attempts.e2el_s[last] * 1e9
    fits = first | ((requests.cached_tokens >= expected.least) & (requests.cached_tokens <= expected.most))
    differing = requests.answered & ~fits
    started = requests.attempts.started_ns[requests.last[differing]]
    return bool(differing.any() and (started < ended.max()).all())
