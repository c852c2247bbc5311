"""What the block-exact model says about the requests that were sent, in the order in which they started.

The model lets every request end before the next begins. With several in flight that is what the engine does as well, as
long as nothing is evicted and no two of them are the first with the same text.

In which order blocks are freed depends on the engine's release; where it tells none, both orders give the bounds.

The tokens of answers are not told. Where a conversation quotes an answer, the least is predicted with answers that nobody
can find again, and the most with answers whose text gives their own tokens again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cachemodel.block_hashes import HashChain
from cachemodel.block_pool import BlockPool
from cachemodel.releases import PoolRules, pool_rules
from contract.engine_version import parse_version
from enginemetrics.snapshot import CacheConfig

Ids = npt.NDArray[np.int32]
EITHER_ORDER = (PoolRules(hashless_first=True), PoolRules(hashless_first=False))


@dataclass(frozen=True)
class SentRequest:
    """A request that was answered, as far as the cache is concerned.

    `quoted`: the prompt that quotes this one's answer, where there is one.
    """

    request_id: str
    prompt: Ids
    output_tokens: int
    quoted: Ids | None = None


@dataclass(frozen=True)
class ModelledCache:
    """An engine's cache as far as the model needs it.

    Attributes:
        num_blocks: None: taken to be endless.
        rules: of the engine's release; of all that it may be where it does not report.
    """

    block_size: int
    num_blocks: int | None
    enabled: bool
    rules: tuple[PoolRules, ...] = (PoolRules(),)


@dataclass(frozen=True)
class Expected:
    """Tokens of the prompt, and bounds of those found in the cache; None: the pool could not hold the request."""

    prompt_tokens: int
    least: int | None
    most: int | None

    def agrees(self, cached_tokens: int) -> bool:
        return self.least is not None and self.most is not None and self.least <= cached_tokens <= self.most


def modelled_cache(ranks: int | None, cache: CacheConfig | None, version: str | None) -> ModelledCache | str:
    """The cache to model, or why it cannot be. `version`: what the engine states."""
    if ranks is None:
        return "the engine's metrics cannot be read, so its block size is not known"
    if ranks > 1:
        return f"the engine has {ranks} data-parallel ranks and chooses itself which one a request goes to"
    if cache is None or cache.match_unit is None:
        return "the engine does not report its block size (vllm:cache_config_info)"
    exact = cache.match_unit == cache.block_size
    release = parse_version(version)
    return ModelledCache(
        cache.match_unit,
        cache.blocks_per_rank if exact else None,
        cache.enable_prefix_caching is not False,
        # Requests are replayed one after another, so that it makes no difference when one is admitted.
        EITHER_ORDER if release is None else (pool_rules(release),),
    )


def expectations(sent: Iterable[SentRequest], cache: ModelledCache) -> Iterator[tuple[str, Expected]]:
    """Request id and expectation of each, in order. The cache is empty at first."""
    least = [_Pool(cache, rules) for rules in cache.rules]
    most = [_Pool(cache, rules) for rules in cache.rules]
    for index, request in enumerate(sent):
        unknown = np.full(max(0, request.output_tokens - 1), -1 - index, dtype=np.int32)
        answer = _answer(request, unknown)
        lower = [pool.serve(index, request.prompt, unknown) for pool in least]
        upper = [pool.serve(index, request.prompt, answer) for pool in most]
        yield request.request_id, Expected(len(request.prompt), _bound(min, lower), _bound(max, upper))


def _bound(choose: Callable[[list[int]], int], found: Sequence[int | None]) -> int | None:
    """The least or the most of these; None when one of the pools could not hold the request."""
    known = [tokens for tokens in found if tokens is not None]
    return choose(known) if len(known) == len(found) else None


def _answer(request: SentRequest, unknown: Ids) -> Ids:
    """The computed tokens of an answer (all but the last), read off the prompt that quotes it."""
    if request.quoted is None:
        return unknown
    begin = len(request.prompt)
    answer = request.quoted[begin : begin + len(unknown)]
    continues = len(answer) == len(unknown) and bool((request.quoted[:begin] == request.prompt).all())
    return answer if continues else unknown


class _Pool:
    """One engine, request after request."""

    def __init__(self, cache: ModelledCache, rules: PoolRules) -> None:
        self._cache = cache
        self._pool = (
            None
            if cache.num_blocks is None
            else BlockPool(cache.num_blocks, cache.block_size, enable_caching=cache.enabled, rules=rules)
        )
        self._known: set[bytes] = set()

    def serve(self, index: int, prompt: Ids, answer: Ids) -> int | None:
        chain = HashChain(self._cache.block_size)
        chain.extend(prompt)
        if self._pool is None:
            return self._serve_endless(chain, answer)
        admission = self._pool.admit(index, chain)
        if admission is None:
            return None
        chain.extend(answer)
        if not self._pool.extend(index, chain.token_count):
            self._pool.finish(index)
            return None
        self._pool.finish(index)
        return admission.cached_tokens

    def _serve_endless(self, chain: HashChain, answer: Ids) -> int:
        limit = max(chain.token_count - 1, 0) // self._cache.block_size
        found = 0
        for name in chain.hashes[:limit]:
            if name not in self._known:
                break
            found += 1
        chain.extend(answer)
        if self._cache.enabled:
            self._known.update(chain.hashes)
        return found * self._cache.block_size


def by_stage(expected: Mapping[str, Expected], request_ids: Iterable[str]) -> tuple[int, int] | None:
    """Bounds of hit tokens summed over requests; None when one of them is not known."""
    chosen = [expected.get(request_id) for request_id in request_ids]
    least = most = 0
    for one in chosen:
        if one is None or one.least is None or one.most is None:
            return None
        least += one.least
        most += one.most
    return least, most
