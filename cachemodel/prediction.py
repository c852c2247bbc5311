"""What a real engine is going to report for requests sent one after another: cached tokens, to the
token."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cachemodel.block_hashes import ExtraKeys, HashChain, TokenIds, block_hashes, hit_limit
from cachemodel.block_pool import BlockPool
from cachemodel.releases import PoolRules


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request as the engine is going to see it.

    Attributes:
        token_ids: the prompt after tokenization, BOS included; shape (n,).
        output_tokens: how many tokens it generates, at least 1.
        rank: the data-parallel rank that serves it.
        extra_keys: cache salt or adapter, see `HashChain`.
    """

    token_ids: TokenIds
    output_tokens: int = 1
    rank: int = 0
    extra_keys: ExtraKeys = ()


def predict(
    requests: Iterable[PlannedRequest],
    block_size: int,
    num_blocks: int | None = None,
    rules: PoolRules = PoolRules(),  # noqa: B008 - frozen
) -> Iterator[int]:
    """Cached tokens of each request, in order, when every request ends before the next begins.

    Ranks start cold and do not share anything. The answers' tokens are not known in advance: their blocks
    take room, but nobody hits them (a conversation whose prompts quote earlier answers is predicted too
    low).

    Args:
        requests: in order of admission; read lazily, so memory does not depend on prompt lengths.
        block_size: tokens per block (the match unit).
        num_blocks: blocks per rank including the placeholder; None is a cache that never evicts.
        rules: of the release that is modelled.

    Raises:
        ValueError: an empty prompt, less than one output token, or a request that never fits the pool.
    """
    return (
        _predict_endless(requests, block_size)
        if num_blocks is None
        else _predict_finite(requests, block_size, num_blocks, rules)
    )


def _predict_endless(requests: Iterable[PlannedRequest], block_size: int) -> Iterator[int]:
    known: dict[int, set[bytes]] = {}
    for index, request in enumerate(requests):
        _check(index, request)
        seen = known.setdefault(request.rank, set())
        hashes = block_hashes(request.token_ids, block_size, request.extra_keys)
        hits = 0
        for name in hashes[: hit_limit(len(request.token_ids), block_size)]:
            if name not in seen:
                break
            hits += 1
        seen.update(hashes)
        yield hits * block_size


def _predict_finite(
    requests: Iterable[PlannedRequest], block_size: int, num_blocks: int, rules: PoolRules
) -> Iterator[int]:
    pools: dict[int, BlockPool] = {}
    for index, request in enumerate(requests):
        _check(index, request)
        if request.rank not in pools:
            pools[request.rank] = BlockPool(num_blocks, block_size, rules=rules)
        pool = pools[request.rank]
        chain = HashChain(block_size, request.extra_keys)
        chain.extend(request.token_ids)
        admission = pool.admit(index, chain)
        # A vocabulary has no negative ids, so an answer made of one is equal to nothing else. The last
        # sampled token is never computed and takes no slot.
        chain.extend([-1 - index] * (request.output_tokens - 1))
        if admission is None or not pool.extend(index, chain.token_count):
            raise ValueError(
                f"request {index}: {len(request.token_ids)} prompt and {request.output_tokens} output "
                f"tokens never fit a pool of {pool.usable_blocks} usable blocks of {block_size}"
            )
        pool.finish(index)
        yield admission.cached_tokens


def _check(index: int, request: PlannedRequest) -> None:
    if not len(request.token_ids):
        raise ValueError(f"request {index}: an engine refuses an empty prompt")
    if request.output_tokens < 1:
        raise ValueError(f"request {index}: output_tokens must be at least 1, found {request.output_tokens}")
