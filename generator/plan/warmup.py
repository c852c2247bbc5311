"""Sharing for warmup mode: every prefix is primed, so each request hits all that it shares (reference 2.8)."""

import numpy as np

from cachemodel.watermark import Integers


def balanced_prefixes(input_tokens: Integers, capacities: Integers, hit_blocks: int) -> Integers:
    """Shared blocks per request, adding up to `hit_blocks`, with cumulative hits in proportion to cumulative input.

    `hit_blocks` must not exceed the sum of `capacities`. One pass.
    """
    total = int(input_tokens.sum())
    remaining = int(capacities.sum())
    prefixes = np.zeros_like(input_tokens)
    seen = hits = 0
    for position, (tokens, capacity) in enumerate(
        zip(input_tokens.tolist(), capacities.tolist(), strict=True)
    ):
        seen += tokens
        remaining -= capacity
        ideal = (2 * hit_blocks * seen + total) // (2 * total)  # hit_blocks * seen / total, rounded half up
        reached = min(max(ideal, hits, hit_blocks - remaining), hit_blocks, hits + capacity)
        prefixes[position] = reached - hits
        hits = reached
    return prefixes
