"""Sending the recorded requests through the model of the engine's cache once more.

Two cases. Where the rank of every request is known, each rank's pool sees its requests begin and end at the measured
times. Where the service chose the rank (warmup mode with several ranks), only what every rank is known to hold can be
predicted: the warmed prefixes.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cachemodel.block_hashes import HashChain, TokenIds, block_hashes, hit_limit
from cachemodel.block_pool import BlockPool


class Prompts(Protocol):
    """Token ids by position."""

    def __getitem__(self, position: int, /) -> TokenIds: ...


class Arrival(NamedTuple):
    """A request as one rank saw it, times in nanoseconds. `output_tokens` is at least 1."""

    position: int
    start_ns: int
    end_ns: int
    output_tokens: int


class Hit(NamedTuple):
    """What the model says of one request; None: it cannot be admitted."""

    position: int
    tokens: int | None


@dataclass
class RankReplay:
    """The pool of one rank and what has happened there.

    Attributes:
        overlapped: requests ran side by side, so the order in which blocks became free depends on their timing.
        preempted: requests whose output did not fit beside the others; an engine preempts some request then.
        waited: requests that were admitted later than they came, because their prompts did not fit beside the others.
    """

    pool: BlockPool
    overlapped: bool = False
    preempted: int = 0
    waited: int = 0
    _running: list[tuple[int, int]] = field(default_factory=list)
    _chains: dict[int, tuple[HashChain, int]] = field(default_factory=dict)
    _admitted: int = 0

    def warm(self, prompts: Iterable[TokenIds]) -> None:
        """Prompts one after another, one output token each."""
        for prompt in prompts:
            if self._admit(prompt, 1, end_ns=0) is not None:
                self._finish_next()

    def run(self, arrivals: Iterable[Arrival], prompts: Prompts) -> Iterator[Hit]:
        """Hits of each request, in the order of admission. `arrivals` are in order of `start_ns`."""
        waiting: deque[Arrival] = deque()
        for arrival in arrivals:
            while self._running and self._running[0][0] <= arrival.start_ns:
                now = self._finish_next()
                yield from self._admit_waiting(waiting, prompts, now)
            waiting.append(arrival)
            yield from self._admit_waiting(waiting, prompts, arrival.start_ns)
            self.waited += bool(waiting)  # each of these joined the queue
        while self._running:
            now = self._finish_next()
            yield from self._admit_waiting(waiting, prompts, now)

    def _admit_waiting(self, waiting: deque[Arrival], prompts: Prompts, now: int) -> Iterator[Hit]:
        while waiting:
            first = waiting[0]
            beside_others = bool(self._running)
            cached = self._admit(prompts[first.position], first.output_tokens, end_ns=max(first.end_ns, now))
            if cached is None and beside_others:
                return  # it waits until another one ends
            waiting.popleft()
            self.overlapped |= beside_others
            yield Hit(first.position, cached)

    def _admit(self, prompt: TokenIds, output_tokens: int, *, end_ns: int) -> int | None:
        chain = HashChain(self.pool.block_size)
        chain.extend(prompt)
        key = self._admitted
        admission = self.pool.admit(key, chain)
        if admission is None:
            return None
        self._admitted += 1
        self._chains[key] = chain, output_tokens
        heapq.heappush(self._running, (end_ns, key))
        return admission.cached_tokens

    def _finish_next(self) -> int:
        end_ns, key = heapq.heappop(self._running)
        chain, output_tokens = self._chains.pop(key)
        # No vocabulary has negative ids, so an answer made of one is equal to nothing else. The last sampled token
        # is never computed and takes no slot.
        chain.extend([-1 - key] * (output_tokens - 1))
        if not self.pool.extend(key, chain.token_count):
            self.preempted += 1
        self.pool.finish(key)
        return end_ns


def hits_on_any_rank(
    positions: Iterable[int], prompts: Prompts, warmups: Sequence[Sequence[TokenIds]], block_size: int
) -> Iterator[Hit]:
    """Hits of requests whose rank is not known, on caches that never evict.

    A request surely hits what the warmup left on every rank. When the first block beyond that was sent by any request
    before, its hits depend on the rank, and they are None.

    Args:
        positions: in order of sending.
        warmups: the warmup prompts of each rank.
    """
    by_rank = [{name for ids in rank for name in block_hashes(ids, block_size)} for rank in warmups]
    primed = set.intersection(*by_rank) if by_rank else set()
    # A chain of hashes leaves the primed set once. Two chains that agree beyond that agree in the first block there,
    # so one hash per request is all there is to remember.
    left_at = {
        name
        for rank in warmups
        for ids in rank
        if (name := _first_outside(block_hashes(ids, block_size), primed)) is not None
    }
    depth = max((len(ids) // block_size for rank in warmups for ids in rank), default=0)
    for position in positions:
        ids = prompts[position]
        hashes = block_hashes(ids[: (depth + 1) * block_size], block_size)
        outside = _first_outside(hashes, primed)
        inside = len(hashes) if outside is None else hashes.index(outside)
        limit = hit_limit(len(ids), block_size)
        tokens: int | None = min(inside, limit) * block_size
        if outside is not None:
            if inside < limit and outside in left_at:
                tokens = None
            left_at.add(outside)
        yield Hit(position, tokens)


def _first_outside(hashes: Sequence[bytes], primed: set[bytes]) -> bytes | None:
    return next((name for name in hashes if name not in primed), None)
