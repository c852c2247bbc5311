"""What the block-exact model of the engine's cache says each request should have hit (design, section 5).

The recorded requests are replayed over their real token ids, after the warmup, in order of sending, through a pool as
large as the engine's. What the model cannot know is not predicted, with the reason.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analyzer.actual import DIFFERING_SHOWN, comparable, describe, hit_rate
from analyzer.engine_cache import EngineCache
from analyzer.request_table import RequestTable
from cachemodel.block_pool import BlockPool
from cachemodel.releases import WHOLE_PROMPT_SINCE, release_not_known
from cachemodel.replay import Arrival, RankReplay, hits_on_any_rank
from contract.errors import ScenarioError
from contract.manifest import Manifest
from contract.planned import UNKNOWN, Integers
from contract.progress import Progress, silent
from contract.token_rows import TokenRows
from prompts.tokenizer import load_tokenizer

NEVER_REACHED = ("connect", "http")
"""Failures of attempts that the engine did not admit. The others may have left their blocks in its cache."""
_CHUNK = 4096


@dataclass(frozen=True)
class Prediction:
    """Attributes:
    tokens: hit tokens per request; -1 where the model cannot know them.
    reason: why there is no prediction at all.
    caveats: why the model may differ from an engine that works as modelled.
    evicted_blocks: blocks that lost their content; None where no pool was replayed.
    drops_last_block: the server leaves out the last block it matches (EAGLE, MTP).
    """

    tokens: Integers
    cache: EngineCache
    reason: str | None = None
    caveats: tuple[str, ...] = ()
    evicted_blocks: int | None = None
    drops_last_block: bool = False

    @property
    def known(self) -> bool:
        """Whether every request has been predicted."""
        return self.reason is None and bool((self.tokens != UNKNOWN).all())


def predict_hits(
    manifest: Manifest,
    requests: RequestTable,
    cache: EngineCache,
    *,
    drops_last_block: bool = False,
    progress: Progress = silent,
) -> Prediction:
    """Replay the measurement. A prediction that cannot be made says so in `reason`."""
    found = _replayed(manifest, requests, cache, progress)
    if not drops_last_block:
        return found
    # UNKNOWN stays: it is below every count. What the block takes in the pool is left out of account.
    tokens = np.where(found.tokens > 0, found.tokens - cache.block_size, found.tokens)
    return replace(found, tokens=tokens, drops_last_block=True)


def _replayed(
    manifest: Manifest, requests: RequestTable, cache: EngineCache, progress: Progress
) -> Prediction:
    nothing = np.full(requests.count, UNKNOWN, dtype=np.int64)
    if cache.not_modelled is not None:
        return Prediction(nothing, cache, f"{cache.not_modelled}; the block pool model has one kind")
    try:
        warmups = _warmups(manifest)
    except ScenarioError as error:
        return Prediction(nothing, cache, f"the warmup prompts cannot be tokenized: {error}")
    ranks = int(manifest.document["dp"]["size"])
    order = _admitted(requests)
    with TokenRows(manifest.directory.token_ids) as rows:
        if ranks == 1 or (requests.plan.rank != UNKNOWN).all():
            return _on_known_ranks(requests, rows, cache, warmups, order, progress)
        return _on_any_rank(requests, rows, cache, warmups, order, progress)


def _warmups(manifest: Manifest) -> list[list[list[int]]]:
    """Token ids of the warmup prompts, per rank, in order of sending.

    Raises ScenarioError when the tokenizer cannot be loaded or does not give what was planned.
    """
    found: list[list[list[int]]] = [[] for _ in range(int(manifest.document["dp"]["size"]))]
    plan = manifest.warmup_plan
    if not plan:
        return found
    section = manifest.effective_config["tokenizer"]
    tokenizer = load_tokenizer(
        section["path"], revision=section["revision"], trust_remote_code=section["trust_remote_code"]
    )
    for item in plan:
        ids = tokenizer.encode_for_server(item["prompt"])
        if len(ids) != item["input_tokens"]:
            raise ScenarioError(
                f"tokenizer.path {section['path']}: makes {len(ids)} tokens of {item['request_id']}, "
                f"{item['input_tokens']} were prepared"
            )
        found[item["dp_rank"]].append(ids)
    return found


def _admitted(requests: RequestTable) -> Integers:
    """Attempts that the engine is taken to have admitted, in order of sending."""
    attempts = requests.attempts
    kinds = attempts.error_kind.to_numpy()
    reached = np.flatnonzero(~np.isin(kinds.astype(object), NEVER_REACHED))
    return reached[np.argsort(attempts.started_ns[reached], kind="stable")]


def _output_tokens(requests: RequestTable, order: Integers) -> Integers:
    """Tokens that these attempts wrote: never more than they were allowed, whatever their answers say."""
    attempts = requests.attempts
    allowed = np.maximum(requests.plan.max_tokens[attempts.position[order]], 1)
    written: Integers = np.clip(attempts.completion_tokens[order], 1, allowed)
    return written


def _needed_blocks(requests: RequestTable, order: Integers, block_size: int) -> int:
    """Blocks that these attempts would take if none were ever reused."""
    attempts = requests.attempts
    tokens = requests.plan.input_tokens[attempts.position[order]]
    output = _output_tokens(requests, order)
    return int((-(-(tokens + output - 1) // block_size)).sum())


def _on_known_ranks(
    requests: RequestTable,
    rows: TokenRows,
    cache: EngineCache,
    warmups: Sequence[Sequence[Sequence[int]]],
    order: Integers,
    progress: Progress,
) -> Prediction:
    tokens = np.full(requests.count, UNKNOWN, dtype=np.int64)
    rank_of = np.maximum(requests.plan.rank, 0)[requests.attempts.position[order]]
    evicted = 0
    caveats: set[str] = set()
    if not cache.blocks:
        caveats.add(f"the size of the pool is not known ({cache.reason}); no eviction is assumed")
    for rank, warmup in enumerate(warmups):
        mine = order[rank_of == rank]
        needed = _needed_blocks(requests, mine, cache.block_size)
        needed += sum(-(-len(ids) // cache.block_size) for ids in warmup)
        # A pool that is larger than everything that was sent cannot evict; its size makes no difference then.
        enough = needed + 2
        blocks = min(cache.blocks.get(rank, enough), enough)
        replay = RankReplay(BlockPool(blocks, cache.block_size, rules=cache.rules))
        replay.warm(warmup)
        for done, hit in enumerate(replay.run(_arrivals(requests, mine), rows), start=1):
            if hit.tokens is None:
                caveats.add(f"the request at position {hit.position} never fits the pool of rank {rank}")
            else:
                tokens[hit.position] = hit.tokens
            progress(f"Predict rank {rank}", done, int(mine.size))
        evicted += replay.pool.evictions
        if replay.overlapped and replay.pool.evictions:
            caveats.add(
                "blocks were evicted while requests ran side by side; which ones depends on the engine's timing"
            )
        if replay.preempted:
            caveats.add(
                "requests did not fit beside each other; which one an engine preempts is not modelled"
            )
        if blocks < enough and (assumed := release_not_known(cache.version)) is not None:
            caveats.add(assumed)
        if replay.waited and not cache.rules.whole_prompt_must_fit:
            caveats.add(
                f"{replay.waited} requests waited for room for their whole prompts; before {WHOLE_PROMPT_SINCE} room "
                "for the first chunk is enough, and the engine does not report how long a chunk is"
            )
    return Prediction(tokens, cache, None, tuple(sorted(caveats)), evicted)


def _arrivals(requests: RequestTable, order: Integers) -> Iterator[Arrival]:
    attempts = requests.attempts
    lasted = np.nan_to_num(attempts.e2el_s[order], nan=0.0)
    ends = attempts.started_ns[order] + (lasted * 1e9).astype(np.int64)
    output = _output_tokens(requests, order)
    columns = (attempts.position[order], attempts.started_ns[order], ends, output)
    for start in range(0, order.size, _CHUNK):
        pieces = [column[start : start + _CHUNK].tolist() for column in columns]
        yield from map(Arrival, *pieces)


def _on_any_rank(
    requests: RequestTable,
    rows: TokenRows,
    cache: EngineCache,
    warmups: Sequence[Sequence[Sequence[int]]],
    order: Integers,
    progress: Progress,
) -> Prediction:
    tokens = np.full(requests.count, UNKNOWN, dtype=np.int64)
    positions = requests.attempts.position[order]
    hits = hits_on_any_rank(map(int, positions), rows, warmups, cache.block_size)
    for done, hit in enumerate(hits, start=1):
        tokens[hit.position] = UNKNOWN if hit.tokens is None else hit.tokens
        progress("Predict", done, int(order.size))
    needed = _needed_blocks(requests, order, cache.block_size)
    needed += max(sum(-(-len(ids) // cache.block_size) for ids in rank) for rank in warmups)
    caveats = []
    if not cache.blocks:
        caveats.append(f"the size of the pool is not known ({cache.reason}); no eviction is assumed")
    elif needed >= min(cache.blocks.values()):
        caveats.append(
            f"the service chose the ranks, and {needed} blocks were sent to ranks of "
            f"{min(cache.blocks.values())}; no eviction is assumed"
        )
    return Prediction(tokens, cache, None, tuple(caveats))


def prediction_document(requests: RequestTable, prediction: Prediction) -> dict[str, Any]:
    """`prediction` of the analysis: totals, and per request against the answers and against theory."""
    predicted = prediction.tokens != UNKNOWN
    usable = predicted & ~requests.void
    total = int(prediction.tokens.sum()) if prediction.known and not requests.void.any() else None
    tokens = int(requests.plan.input_tokens.sum())
    return {
        "hit_tokens": total,
        "input_tokens": None if total is None else tokens,
        "hit_rate": hit_rate(total, tokens),
        "reason": None if total is not None else _why_no_total(requests, prediction),
        "caveats": list(prediction.caveats),
        "requests": _against_answers(requests, prediction, usable),
        "theory": _against_theory(requests, prediction, usable),
        "model": {
            "block_size": prediction.cache.block_size,
            "blocks_per_rank": {str(rank): size for rank, size in prediction.cache.blocks.items()} or None,
            "evicted_blocks": prediction.evicted_blocks,
            "engine_version": prediction.cache.version,
            "free_order": ("hashless_first" if prediction.cache.rules.hashless_first else "all_last"),
        },
    }


def _why_no_total(requests: RequestTable, prediction: Prediction) -> str:
    if prediction.reason is not None:
        return prediction.reason
    if requests.void.any():
        return f"{int(requests.void.sum())} requests are void"
    unknown = int((prediction.tokens == UNKNOWN).sum())
    return f"the hits of {unknown} requests depend on ranks that the service chose, or they never fit"


def _against_answers(requests: RequestTable, prediction: Prediction, usable: Any) -> dict[str, Any]:
    compared = usable & comparable(requests)
    differing = np.flatnonzero(compared & (prediction.tokens != requests.cached_tokens))
    return {
        "predicted": int((prediction.tokens != UNKNOWN).sum()),
        "compared": int(compared.sum()),
        "equal": int(compared.sum()) - int(differing.size),
        "differing": [
            {
                **describe(requests, position),
                "predicted_hit_tokens": int(prediction.tokens[position]),
                "cached_tokens": int(requests.cached_tokens[position]),
            }
            for position in differing[:DIFFERING_SHOWN].tolist()
        ],
    }


def _against_theory(requests: RequestTable, prediction: Prediction, usable: Any) -> dict[str, Any]:
    """Prediction minus theory, and what the watermark model leaves out that makes the difference."""
    theory = requests.plan.theoretical_hit_tokens
    size = prediction.cache.block_size
    limit = np.maximum(requests.plan.input_tokens - 1, 0) // size * size
    reachable = np.minimum(theory, limit)
    beyond_limit = np.where(usable, reachable - theory, 0)
    dropped = np.where(
        usable & prediction.drops_last_block & (reachable > 0), -prediction.cache.block_size, 0
    )
    rest = np.where(usable, prediction.tokens - reachable - dropped, 0)
    lost = np.minimum(rest, 0)
    causes = [
        ("the last prompt token is always computed (n-1 rule)", beyond_limit),
        ("the server drops the last matched block (EAGLE or MTP speculation)", dropped),
        (
            "blocks were evicted: the pool is smaller than what the requests share"
            if prediction.evicted_blocks
            else "a request was sent before the one that should have filled the cache for it",
            lost,
        ),
        ("prompts share more blocks than was planned", np.maximum(rest, 0)),
    ]
    return {
        "compared": int(usable.sum()),
        "equal": int((usable & (prediction.tokens == theory)).sum()),
        "tokens": int(np.where(usable, prediction.tokens - theory, 0).sum()) if usable.any() else None,
        "causes": [
            {"cause": cause, "tokens": int(tokens.sum()), "requests": int((tokens != 0).sum())}
            for cause, tokens in causes
            if tokens.any()
        ],
    }
