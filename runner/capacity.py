"""Do the prepared requests fit the KV cache of a rank, and what does the block model lose there?

What is in use at once may fit and prefixes be lost all the same: finished requests stay cached as well, and the least
recently used block goes first, whoever may want it again. So the demand alone settles nothing unless it is too large.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cachemodel.block_hashes import TokenIds, hit_limit
from cachemodel.block_pool import BlockPool
from cachemodel.releases import PoolRules
from cachemodel.replay import Arrival, Prompts, RankReplay
from cachemodel.watermark import requests_by_lane
from contract.planned import Integers, PlannedColumns

REPLAYED_TOKENS = 20_000_000
"""Prompt tokens of the replay, at most: it is a matter of seconds then."""


@dataclass(frozen=True)
class Demand:
    """Most blocks of one rank that are in use at once: shared prefixes, and what `running` requests add to them.

    `whole_load`: blocks that all of a rank's requests take one after another; a pool that holds them never evicts.
    """

    prefixes: int
    running: int
    added: int
    whole_load: int

    @property
    def blocks(self) -> int:
        return self.prefixes + self.added


def demand(plan: PlannedColumns, *, concurrency: int, ranks: int, block_size: int) -> Demand:
    """Of the rank that needs most. Shared prefixes count once, however many requests use them.

    A request adds what it does not share, its answer included but for the last token, which is never computed. With
    lanes at most one request of each runs at a time; without, the service spreads them over its ranks.
    """
    tokens = plan.input_tokens + plan.max_tokens - 1
    shared = plan.shared_prefix_tokens // block_size
    own = -(-tokens // block_size) - shared
    if plan.lane is None:
        running = min(-(-concurrency // ranks), plan.count)
        prefixes = sum(int(shared[requests].max()) for requests in requests_by_lane(plan.group))
        return Demand(prefixes, running, _largest(own, running), prefixes + int(own.sum()))
    lanes = requests_by_lane(plan.lane)
    found = []
    for rank in np.unique(plan.rank).tolist():
        mine = [requests for requests in lanes if plan.rank[requests[0]] == rank]
        running = min(concurrency, len(mine))
        prefixes = sum(int(shared[requests].max()) for requests in mine)
        longest = np.array([own[requests].max() for requests in mine])
        all_own = sum(int(own[requests].sum()) for requests in mine)
        found.append(Demand(prefixes, running, _largest(longest, running), prefixes + all_own))
    return replace(max(found, key=lambda one: one.blocks), whole_load=max(one.whole_load for one in found))


def _largest(values: Integers, count: int) -> int:
    return int(np.sort(values)[values.size - count :].sum())


@dataclass(frozen=True)
class Loss:
    """What the block model says of the first `requests` requests: hit tokens of theory, and those it does not find.

    `waited`: requests that had to wait for room, or whose answers did not fit beside the others.
    """

    requests: int
    theory: int
    tokens: int
    waited: int


def modelled_loss(
    plan: PlannedColumns,
    prompts: Prompts,
    warmups: Sequence[Sequence[TokenIds]],
    *,
    concurrency: int,
    blocks: int,
    block_size: int,
    rules: PoolRules,
    on_step: Callable[[int], None] = lambda _: None,
) -> Loss:
    """Send the plan through pools of `blocks` blocks, `concurrency` requests side by side, each as long as the others.

    Where the service chooses the ranks, requests go round them in turn.

    Args:
        warmups: token ids of the warmup prompts of each rank, in order.
        on_step: called with how many requests have been replayed; may raise to end it.
    """
    count = int(np.searchsorted(np.cumsum(plan.input_tokens), REPLAYED_TOKENS, side="right"))
    count = max(1, min(count, plan.count))
    rank_of = plan.rank if plan.lane is not None else np.arange(plan.count, dtype=np.int64) % len(warmups)
    ends = _ends(plan, concurrency)
    output = np.maximum(plan.max_tokens, 1)
    done = theory = lost = waited = 0
    for rank, warmup in enumerate(warmups):
        replay = RankReplay(BlockPool(blocks, block_size, rules=rules))
        replay.warm(warmup)
        mine = np.flatnonzero(rank_of[:count] == rank)
        arrivals = map(Arrival, mine.tolist(), mine.tolist(), ends[mine].tolist(), output[mine].tolist())
        for hit in replay.run(arrivals, prompts):
            limit = hit_limit(int(plan.input_tokens[hit.position]), block_size) * block_size
            reachable = min(int(plan.theoretical_hit_tokens[hit.position]), limit)
            theory += reachable
            lost += max(0, reachable - (hit.tokens or 0))
            done += 1
            on_step(done)
        waited += replay.waited + replay.preempted
    return Loss(count, theory, lost, waited)


def _ends(plan: PlannedColumns, concurrency: int) -> Integers:
    """When each request is over, in places of the order: when all slots have been taken since, or its lane goes on."""
    ends = np.arange(plan.count, dtype=np.int64) + concurrency
    if plan.lane is not None:
        for requests in requests_by_lane(plan.lane):
            ends[requests[:-1]] = np.minimum(ends[requests[:-1]], requests[1:])
    return ends


@dataclass(frozen=True)
class EqualPrompts:
    """Prompts of one length that begin with the same `shared` tokens; the rest of each is its own.

    They stand for prompts whose token ids are not known, as those with images.
    """

    shared: int
    length: int

    def __getitem__(self, position: int, /) -> TokenIds:
        ids = np.full(self.length, position + 1, dtype=np.int32)
        ids[: self.shared] = 0
        return ids


def equal_requests(count: int, prompts: EqualPrompts, output_tokens: int, ranks: int) -> PlannedColumns:
    """The plan of such requests in one group. Theory: each finds what is shared, but for the first of each rank."""
    zero = np.zeros(count, dtype=np.int64)
    theory = zero + prompts.shared
    theory[:ranks] = 0
    return PlannedColumns(
        group=zero,
        groups=("all",),
        rank=zero - 1,
        input_tokens=zero + prompts.length,
        max_tokens=zero + output_tokens,
        shared_prefix_tokens=zero + prompts.shared,
        theoretical_hit_tokens=theory,
    )
