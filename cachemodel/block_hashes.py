"""The hash chain that names a block by its tokens and by everything before it.

An engine finds a cached block by `H(parent hash, tokens of the block, extra keys)`. Two chains agree in
their first k hashes exactly when their first k blocks hold the same tokens, so equality of hashes stands
for equality of prefixes; the digest itself never has to be the engine's.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

TokenIds: TypeAlias = Sequence[int] | npt.NDArray[np.integer]
ExtraKeys: TypeAlias = tuple[str | int, ...]

DIGEST_BYTES = 16
_INT32 = np.iinfo(np.int32)


def as_token_ids(token_ids: TokenIds) -> npt.NDArray[np.int32]:
    """Token ids as a contiguous little-endian int32 column of shape (n,).

    Raises:
        ValueError: more than one dimension, not integers, or a value outside int32 (it would wrap, and two
            different prompts would share a hash).
    """
    array = np.asarray(token_ids)
    if array.size == 0:
        return np.empty(0, dtype="<i4")
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"token ids: expected a flat row of integers, found {array.dtype} of shape {array.shape}"
        )
    if array.dtype.itemsize > 4 or array.dtype == np.uint32:
        low, high = int(array.min()), int(array.max())
        if low < _INT32.min or high > _INT32.max:
            raise ValueError(f"token ids: expected 32-bit values, found {low} to {high}")
    return np.ascontiguousarray(array, dtype="<i4")


class HashChain:
    """A growing sequence of tokens and the hashes of its full blocks.

    Appending costs time linear in what is appended: a decoding request adds one token at a time.

    Args:
        block_size: tokens per block, at least 1.
        extra_keys: what else tells two equal prompts apart (a cache salt, an adapter's name). As in vLLM
            it enters the first block, and the chain carries it on.
    """

    __slots__ = ("_parent", "_partial", "block_size", "hashes", "token_count")

    def __init__(self, block_size: int, extra_keys: ExtraKeys = ()) -> None:
        if block_size < 1:
            raise ValueError(f"block_size: expected at least 1, found {block_size}")
        self.block_size = block_size
        self.token_count = 0
        self.hashes: list[bytes] = []
        # repr keeps ("a", 1) and ("a1",) apart, so different keys give different roots.
        self._parent = (
            blake2b(repr(extra_keys).encode(), digest_size=DIGEST_BYTES).digest() if extra_keys else b""
        )
        self._partial = bytearray()

    def extend(self, token_ids: TokenIds) -> None:
        """Append tokens; every block they complete gets its hash."""
        array = as_token_ids(token_ids)
        self._partial += array.tobytes()
        self.token_count += len(array)
        self._hash_full_blocks()

    def append(self, token_id: int) -> None:
        """Append one token (the decode path: no array is built)."""
        self._partial += token_id.to_bytes(4, "little", signed=True)
        self.token_count += 1
        if len(self._partial) == 4 * self.block_size:
            self._hash_full_blocks()

    def _hash_full_blocks(self) -> None:
        width = 4 * self.block_size
        whole = len(self._partial) // width * width
        if not whole:
            return
        parent = self._parent
        with memoryview(self._partial) as view:
            for start in range(0, whole, width):
                digest = blake2b(parent, digest_size=DIGEST_BYTES)
                digest.update(view[start : start + width])
                parent = digest.digest()
                self.hashes.append(parent)
        self._parent = parent
        del self._partial[:whole]


def block_hashes(token_ids: TokenIds, block_size: int, extra_keys: ExtraKeys = ()) -> list[bytes]:
    """Hashes of the `floor(n / block_size)` full blocks of `token_ids`; a partial last block has none."""
    chain = HashChain(block_size, extra_keys)
    chain.extend(token_ids)
    return chain.hashes


def hit_limit(token_count: int, block_size: int) -> int:
    """Most blocks a prompt of `token_count` tokens can find in a cache: `floor((n - 1) / block_size)`.

    The last prompt token is always computed, because its logits give the first output token; so a fully
    cached prompt whose length is a multiple of the block size loses one whole block.
    """
    return max(token_count - 1, 0) // block_size
