"""What the block-exact model says about the requests that were sent, in the order in which they started.

The model lets every request end before the next begins. With several in flight that is what the engine does as well, as
long as nothing is evicted and no two of them are the first with the same text.

The tokens of answers are not told. Where a conversation quotes an answer, the least is predicted with answers that nobody
can find again, and the most with answers whose text gives their own tokens again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cachemodel.block_hashes import HashChain
from cachemodel.block_pool import BlockPool
from enginemetrics.snapshot import CacheConfig

Ids = npt.NDArray[np.int32]


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
    """An engine's cache as far as the model needs it. num_blocks None: taken to be endless."""

    block_size: int
    num_blocks: int | None
    enabled: bool


@dataclass(frozen=True)
class Expected:
    """Tokens of the prompt, and bounds of those found in the cache; None: the pool could not hold the request."""

    prompt_tokens: int
    least: int | None
    most: int | None

    def agrees(self, cached_tokens: int) -> bool:
        return self.least is not None and self.most is not None and self.least <= cached_tokens <= self.most


def modelled_cache(ranks: int | None, cache: CacheConfig | None) -> ModelledCache | str:
    """The cache to model, or why it cannot be."""
    if ranks is None:
        return "the engine's metrics cannot be read, so its block size is not known"
    if ranks > 1:
        return f"the engine has {ranks} data-parallel ranks and chooses itself which one a request goes to"
    if cache is None or cache.match_unit is None:
        return "the engine does not tell its block size (vllm:cache_config_info)"
    exact = cache.match_unit == cache.block_size
    return ModelledCache(
        cache.match_unit, cache.blocks_per_rank if exact else None, cache.enable_prefix_caching is not False
    )


def expectations(sent: Iterable[SentRequest], cache: ModelledCache) -> Iterator[tuple[str, Expected]]:
    """Request id and expectation of each, in order. The cache is empty at first."""
    least, most = _Pool(cache), _Pool(cache)
    for index, request in enumerate(sent):
        unknown = np.full(max(0, request.output_tokens - 1), -1 - index, dtype=np.int32)
        lower = least.serve(index, request.prompt, unknown)
        upper = most.serve(index, request.prompt, _answer(request, unknown))
        yield request.request_id, Expected(len(request.prompt), lower, upper)


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

    def __init__(self, cache: ModelledCache) -> None:
        self._cache = cache
        self._pool = (
            None
            if cache.num_blocks is None
            else BlockPool(cache.num_blocks, cache.block_size, enable_caching=cache.enabled)
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
