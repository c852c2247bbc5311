"""vLLM's own cache classes beside the model, without an engine: run with the Python of a vLLM environment.

    PYTHONPATH=[TREE:]CHECKOUT ENV/bin/python -B -m tests.real.cache_classes

Both take the walks of tests/cachemodel/walks.py in step. After every operation admission, hits, the whole free queue,
every reference count and the content of every block are compared. stdout: one JSON object, the outcomes by walk. A
difference ends it with the operation at which it came up. Works with vLLM 0.10.2 and later; TREE is an unpacked wheel of
another release than the environment's.
"""

import inspect
import json
import sys
from typing import Any, TypeVar

import torch
import vllm
from vllm import SamplingParams
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

try:
    from vllm.utils.hashing import sha256
except ImportError:  # up to 0.11.0
    from vllm.utils import sha256

from cachemodel.releases import PoolRules, pool_rules
from contract.engine_version import parse_version
from tests.cachemodel.walks import (
    CROWDED_BLOCKS,
    CROWDED_SIZE,
    SEQUENTIAL_BLOCKS,
    SEQUENTIAL_SIZE,
    ModelCache,
    Sequence,
    crowded_walk,
    sequential_walk,
)

LONGEST = 4096
T = TypeVar("T")


def accepted(function: Any, **arguments: Any) -> dict[str, Any]:
    """Those of the arguments that this release's `function` knows."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in known}


class EngineCache:
    """vLLM's KVCacheManager as a `Cache`, driven as its scheduler drives it."""

    def __init__(self, blocks: int, size: int, rules: PoolRules) -> None:
        spec = FullAttentionSpec(
            **accepted(
                FullAttentionSpec.__init__,
                block_size=size,
                num_kv_heads=1,
                head_size=1,
                dtype=torch.float32,
                use_mla=False,
            )
        )
        config = KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        self.manager = KVCacheManager(
            **accepted(
                KVCacheManager.__init__,
                kv_cache_config=config,
                max_model_len=LONGEST,
                max_num_batched_tokens=LONGEST,
                scheduler_block_size=size,
                hash_block_size=size,
                enable_caching=True,
                enable_kv_cache_events=True,
            )
        )
        self.hasher = kv_cache_utils.get_request_block_hasher(size, sha256)
        self.requests: dict[int, Request] = {}
        self.removed = 0
        self.rules = rules

    def admit(self, sequence: Sequence, budget: int | None) -> int | None:
        request = self.requests.get(sequence.name) or self._request(sequence)
        request.num_computed_tokens = 0
        found, hits = self.manager.get_computed_blocks(request)[:2]
        rest = request.num_tokens - hits
        new = rest if budget is None else min(rest, budget)
        if not self._whole_prompt_fits(request, hits, found):
            return None
        must_fit = accepted(
            self.manager.allocate_slots, full_sequence_must_fit=self.rules.whole_prompt_must_fit
        )
        if self.manager.allocate_slots(request, new, hits, found, **must_fit) is None:
            return None
        request.num_computed_tokens = hits + new
        self.requests[sequence.name] = request
        return int(hits)

    def _request(self, sequence: Sequence) -> Request:
        return Request(
            **accepted(
                Request.__init__,
                request_id=str(sequence.name),
                prompt_token_ids=list(sequence.tokens),
                sampling_params=SamplingParams(max_tokens=LONGEST, ignore_eos=True),
                pooling_params=None,
                eos_token_id=None,
                block_hasher=self.hasher,
            )
        )

    def _whole_prompt_fits(self, request: Request, hits: int, found: Any) -> bool:
        """From 0.19.0 until it became an argument of allocate_slots the scheduler asked for this itself."""
        ask = getattr(self.manager, "can_fit_full_sequence", None)
        return ask is None or bool(ask(request, num_new_computed_tokens=hits, new_computed_blocks=found))

    def extend(self, sequence: Sequence, upto: int) -> bool:
        request = self.requests[sequence.name]
        if self.manager.allocate_slots(request, upto - request.num_computed_tokens) is None:
            return False
        request.num_computed_tokens = upto
        return True

    def sample(self, sequence: Sequence, token: int) -> None:
        self.requests[sequence.name].append_output_token_ids(token)

    def finish(self, sequence: Sequence) -> None:
        self.manager.free(self.requests.pop(sequence.name))

    def reset(self) -> bool:
        return bool(self.manager.reset_prefix_cache())

    def evictions(self) -> int:
        for event in self.manager.take_events():
            self.removed += (
                len(getattr(event, "block_hashes", ())) if "Removed" in type(event).__name__ else 0
            )
        return self.removed


class InStep:
    """Both as one `Cache`; AssertionError at the first operation after which they differ."""

    def __init__(self, blocks: int, size: int, rules: PoolRules) -> None:
        self.engine, self.model = EngineCache(blocks, size, rules), ModelCache(blocks, size, rules)
        self.names: dict[Any, bytes] = {}
        self.operations = 0

    def admit(self, sequence: Sequence, budget: int | None) -> int | None:
        return self._same(self.engine.admit(sequence, budget), self.model.admit(sequence, budget))

    def extend(self, sequence: Sequence, upto: int) -> bool:
        return self._same(self.engine.extend(sequence, upto), self.model.extend(sequence, upto))

    def sample(self, sequence: Sequence, token: int) -> None:
        self._same(self.engine.sample(sequence, token), self.model.sample(sequence, token))

    def finish(self, sequence: Sequence) -> None:
        self._same(self.engine.finish(sequence), self.model.finish(sequence))

    def reset(self) -> bool:
        return self._same(self.engine.reset(), self.model.reset())

    def evictions(self) -> int:
        return self._same(self.engine.evictions(), self.model.evictions())

    def _same(self, engine: T, model: T) -> T:
        self.operations += 1
        where = f"operation {self.operations}"
        assert engine == model, f"{where}: the engine answers {engine}, the model {model}"
        pool, blocks = self.model.pool, self.engine.manager.block_pool
        free = [block.block_id for block in blocks.free_block_queue.get_all_free_blocks()]
        modelled, at = [], pool._next[0]
        while at:
            modelled.append(at)
            at = pool._next[at]
        assert free == modelled, f"{where}: free in the engine {free}, in the model {modelled}"
        for block in blocks.blocks[1:]:
            held, name = pool._references[block.block_id], pool._hash_of[block.block_id]
            assert block.ref_cnt == held, (
                f"{where}: block {block.block_id} has {block.ref_cnt} users, not {held}"
            )
            assert (block.block_hash is None) == (name is None), f"{where}: content of block {block.block_id}"
            if name is not None:
                assert self.names.setdefault(block.block_hash, name) == name, f"{where}: {block.block_id}"
        return engine


def main() -> int:
    kv_cache_utils.init_none_hash(sha256)
    rules = pool_rules(parse_version(vllm.__version__))
    found = {
        f"sequential-{blocks}": sequential_walk(InStep(blocks, SEQUENTIAL_SIZE, rules)).document()
        for blocks in SEQUENTIAL_BLOCKS
    }
    found["crowded"] = crowded_walk(InStep(CROWDED_BLOCKS, CROWDED_SIZE, rules)).document()
    print(json.dumps({"version": vllm.__version__, "outcomes": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
