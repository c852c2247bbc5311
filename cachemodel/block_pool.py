"""vLLM's block pool of one rank, to the block: lookup, allocation, eviction, freeing.

The rules are those of vLLM with one full-attention group; where its releases differ, `PoolRules` says which:

* Block 0 is a placeholder: a pool of `num_blocks` has `num_blocks - 1` usable ones. The free queue starts
  in the order of block ids.
* A lookup walks the hash chain and stops at the first block that is not there, or at the n-1 rule's limit.
* A free block keeps its hash until it is taken for something else: taking is the eviction.
* A block gets its hash as soon as slots are given for all its tokens, prompt and output alike. Two
  requests that compute the same block side by side each keep their own copy.
* A finished request gives its blocks back in reverse order: those with a hash to the end of the free
  queue (a prompt's tail is evicted before its head), those without to the front (`hashless_first`).
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

from cachemodel.block_hashes import HashChain, hit_limit
from cachemodel.releases import PoolRules

# The placeholder block is never free, so its place in the linked list serves as the list's head.
_HEAD = 0
_TODAY = PoolRules()


@dataclass(frozen=True, slots=True)
class Admission:
    """What a request got when it was admitted.

    Attributes:
        cached_tokens: tokens found in the cache; they need no computation.
        computed_tokens: tokens from the start that have slots now, cached ones included.
        evicted_blocks: cached blocks that lost their content to make room.
    """

    cached_tokens: int
    computed_tokens: int
    evicted_blocks: int


@dataclass(slots=True)
class _Held:
    """Blocks of one admitted request, in the order of its tokens; the first `hashed` carry a hash."""

    chain: HashChain
    blocks: list[int] = field(default_factory=list)
    hashed: int = 0


class BlockPool:
    """The KV blocks of one rank and the requests that hold them.

    Every operation costs time linear in the blocks it touches; none depends on the size of the pool, but
    `reset`.

    Args:
        num_blocks: blocks of this rank including the placeholder, at least 2. (vLLM's
            `--num-gpu-blocks-override`; `num_gpu_blocks` in `vllm:cache_config_info` is the sum over ranks.)
        block_size: tokens per block.
        enable_caching: False makes an engine started with `--no-enable-prefix-caching`.
        rules: of the release that is modelled.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_caching: bool = True, rules: PoolRules = _TODAY
    ) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks: expected at least 2 (one is a placeholder), found {num_blocks}")
        if block_size < 1:
            raise ValueError(f"block_size: expected at least 1, found {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_caching = enable_caching
        self.rules = rules
        self.evictions = 0
        self._next: list[int] = [*range(1, num_blocks), _HEAD]
        self._previous: list[int] = [num_blocks - 1, *range(num_blocks - 1)]
        self._free = num_blocks - 1
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        # hash -> the block a lookup answers with; further copies of the same content wait, oldest first.
        self._cached: dict[bytes, int] = {}
        self._copies: dict[bytes, dict[int, None]] = {}
        self._held: dict[Hashable, _Held] = {}

    @property
    def usable_blocks(self) -> int:
        return self.num_blocks - 1

    @property
    def free_blocks(self) -> int:
        """Blocks that no request holds; cached content among them still counts as free."""
        return self._free

    @property
    def cached_blocks(self) -> int:
        """Blocks whose content can be found, each copy counted."""
        return len(self._cached) + sum(len(copies) for copies in self._copies.values())

    @property
    def usage(self) -> float:
        """Share of usable blocks held by requests, 0 to 1 (`vllm:kv_cache_usage_perc`)."""
        return 1.0 - self._free / self.usable_blocks

    def blocks_for(self, token_count: int) -> int:
        """Blocks that hold `token_count` tokens."""
        return -(-token_count // self.block_size)

    def lookup(self, chain: HashChain) -> int:
        """Tokens of `chain` a request with exactly these tokens would find now; changes nothing."""
        return len(self._find(chain)) * self.block_size

    def admit(
        self, request_id: Hashable, chain: HashChain, token_budget: int | None = None
    ) -> Admission | None:
        """Admit a request, or answer None when it must wait.

        Slots are given for the cached tokens and `token_budget` more (None: for all): a chunked prefill
        continues with `extend`. The whole of `chain` must fit into the free blocks all the same, unless the
        rules ask no more than that this first chunk does. The pool keeps `chain` and reads the hashes that the
        caller's appended tokens add to it.

        Raises:
            ValueError: the id is held already, the chain is empty or of another block size, or the
                budget is below 1.
        """
        if request_id in self._held:
            raise ValueError(f"request {request_id!r} holds blocks already")
        if chain.block_size != self.block_size:
            raise ValueError(f"chain of block size {chain.block_size} in a pool of {self.block_size}")
        if chain.token_count < 1 or (token_budget is not None and token_budget < 1):
            raise ValueError("an admission needs at least one token and a budget of at least one")
        found = self._find(chain)
        cached = len(found) * self.block_size
        computed = (
            chain.token_count if token_budget is None else min(chain.token_count, cached + token_budget)
        )
        idle = sum(1 for block in found if not self._references[block])
        must_fit = chain.token_count if self.rules.whole_prompt_must_fit else computed
        if self.blocks_for(must_fit) - len(found) > self._free - idle:
            return None
        for block in found:
            if not self._references[block]:
                self._unlink(block)
            self._references[block] += 1
        self._held[request_id] = _Held(chain, found, len(found))
        before = self.evictions
        self._give_slots(self._held[request_id], computed)
        return Admission(cached, computed, self.evictions - before)

    def extend(self, request_id: Hashable, computed_tokens: int) -> bool:
        """Give an admitted request slots for its first `computed_tokens` tokens.

        Returns:
            False when the free blocks do not suffice; nothing has changed then.

        Raises:
            KeyError: the request holds no blocks.
            ValueError: `computed_tokens` is more than the chain has.
        """
        held = self._held[request_id]
        if computed_tokens > held.chain.token_count:
            raise ValueError(
                f"slots for {computed_tokens} tokens, but the chain has {held.chain.token_count}"
            )
        if self.blocks_for(computed_tokens) - len(held.blocks) > self._free:
            return False
        self._give_slots(held, computed_tokens)
        return True

    def finish(self, request_id: Hashable) -> None:
        """Take a request's blocks back: it is done, aborted or preempted. KeyError when it holds none."""
        held = self._held.pop(request_id)
        keep: list[int] = []
        reuse: list[int] = []
        for block in reversed(held.blocks):
            self._references[block] -= 1
            if not self._references[block]:
                first = self.rules.hashless_first and self._hash_of[block] is None
                (reuse if first else keep).append(block)
        for block in reversed(reuse):
            self._link_before(self._next[_HEAD], block)
        for block in keep:
            self._link_before(_HEAD, block)

    def reset(self) -> bool:
        """Forget all cached content; False, and nothing happens, while any block is held."""
        if self._free != self.usable_blocks:
            return False
        self._cached.clear()
        self._copies.clear()
        self._hash_of = [None] * self.num_blocks
        return True

    def _find(self, chain: HashChain) -> list[int]:
        found: list[int] = []
        for name in chain.hashes[: hit_limit(chain.token_count, self.block_size)]:
            block = self._cached.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def _give_slots(self, held: _Held, computed_tokens: int) -> None:
        for _ in range(self.blocks_for(computed_tokens) - len(held.blocks)):
            held.blocks.append(self._take())
        if not self.enable_caching:
            return
        full = computed_tokens // self.block_size
        while held.hashed < full:
            self._store(held.chain.hashes[held.hashed], held.blocks[held.hashed])
            held.hashed += 1

    def _store(self, name: bytes, block: int) -> None:
        self._hash_of[block] = name
        if self._cached.setdefault(name, block) != block:
            self._copies.setdefault(name, {})[block] = None

    def _take(self) -> int:
        block = self._next[_HEAD]
        self._unlink(block)
        self._references[block] = 1
        name = self._hash_of[block]
        if name is not None:
            self._hash_of[block] = None
            self._forget(name, block)
            self.evictions += 1
        return block

    def _forget(self, name: bytes, block: int) -> None:
        copies = self._copies.get(name)
        if self._cached[name] != block:
            assert copies is not None  # noqa: S101 - a block with this hash is either the first or a copy
            del copies[block]
        elif copies:
            self._cached[name] = next(iter(copies))
            del copies[self._cached[name]]
        else:
            del self._cached[name]
        if not copies:
            self._copies.pop(name, None)

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before], self._previous[after] = after, before
        self._free -= 1

    def _link_before(self, after: int, block: int) -> None:
        before = self._previous[after]
        self._next[before] = self._previous[after] = block
        self._previous[block], self._next[block] = before, after
        self._free += 1
