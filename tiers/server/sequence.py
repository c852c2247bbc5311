"""A sequence: its tokens, its blocks and the bytes in them, all from the run's seed and its number."""

import hashlib
import random
from dataclasses import dataclass

import numpy as np

from tiers.interfaces import Bytes
from tiers.payload import payload
from tiers.server.layout import Layout

VOCABULARY = 32_000
WARMUP_NUMBERS = 1 << 40
"""Numbers of warm-up sequences begin here, out of the way of measured ones."""
BFLOAT16 = "bfloat16"


def named(number: int) -> str:
    """A sequence in lines for people."""
    return f"seq={number}" if number < WARMUP_NUMBERS else f"warm-up {number - WARMUP_NUMBERS}"


@dataclass(frozen=True)
class Sequences:
    """The sequences of a run. Each takes `blocks` blocks: from the lower half of the tensors to store from (behind one
    another, or with `scattered` drawn), from the upper half, in another order, to retrieve into."""

    seed: int
    layout: Layout
    tokens: int
    blocks: int
    scattered: bool = False

    def token_ids(self, number: int) -> tuple[int, ...]:
        draw = random.Random(f"{self.seed} tokens {number}")
        return tuple(draw.choices(range(VOCABULARY), k=self.tokens))

    def source(self, number: int) -> list[int]:
        if self.scattered:
            draw = random.Random(f"{self.seed} source {number}")
            return draw.sample(range(self.layout.blocks // 2), self.blocks)
        offset = number * self.blocks % (self.layout.blocks // 2 - self.blocks + 1)
        return list(range(offset, offset + self.blocks))

    def destination(self, number: int) -> list[int]:
        half = self.layout.blocks // 2
        return random.Random(f"{self.seed} blocks {number}").sample(
            range(half, self.layout.blocks), self.blocks
        )

    def content(self, number: int, rank: int, layer: int) -> Bytes:
        """Bytes of a layer's blocks, shape (blocks, bytes of a block). MLA's latent plane is the same on every rank."""
        owner = 0 if self.layout.shared_between_ranks else rank
        size = self.layout.layer_bytes[layer]
        return payload("server", self.seed, number, owner, layer, size=self.blocks * size).reshape(
            self.blocks, size
        )

    def checksums(self, number: int, rank: int, blocks_per_chunk: int) -> list[str]:
        """MD5 per chunk in the form of the server's API: layer after layer, the planes of a layer outside its blocks."""
        contents = [self.content(number, rank, layer) for layer in range(len(self.layout.layers))]
        sums = []
        for first in range(0, self.blocks, blocks_per_chunk):
            digest = hashlib.md5(usedforsecurity=False)
            for layer, content in zip(self.layout.layers, contents, strict=True):
                part = content[first : first + blocks_per_chunk]
                planes = part.reshape(len(part), layer.planes, -1).swapaxes(0, 1)
                digest.update(_as_hashed(np.ascontiguousarray(planes), layer.dtype))
            sums.append(digest.hexdigest())
        return sums


def _as_hashed(values: Bytes, dtype: str) -> bytes:
    """The server hashes bfloat16 as float32, whose upper half it is."""
    if dtype != BFLOAT16:
        return values.tobytes()
    widened = values.reshape(-1).view("<u2").astype("<u4") << 16
    return widened.tobytes()
