"""KV shape specs: what each layer's tensor looks like and which layers form a group."""

import math
import re
from dataclasses import dataclass

from contract.errors import ScenarioError

ITEM_BYTES = {"float16": 2, "float32": 4, "bfloat16": 2, "uint8": 1, "int8": 1}
FOLDED = "--use-mla: ranks are folded as with MLA (rank 0 alone stores, all read), and kv_size 2 keeps classical tensors"
FORM = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)\s*:\s*(\w+)\s*:\s*(\d+)")


@dataclass(frozen=True)
class Group:
    """Layers of one shape. `planes`: 2 for separate K and V, 1 for MLA's single latent plane."""

    planes: int
    blocks: int
    block_size: int
    heads: int
    head_size: int
    dtype: str
    layers: int


@dataclass(frozen=True)
class Layer:
    """One layer's tensor: rank 3 (blocks, block size, hidden) for MLA, else rank 5 (2, blocks, block size, heads,
    head size). The server tells MLA by the rank."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def planes(self) -> int:
        return 1 if len(self.shape) == 3 else 2

    @property
    def block_bytes(self) -> int:
        blocks = self.shape[0] if self.planes == 1 else self.shape[1]
        return math.prod(self.shape) // blocks * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Layout:
    """Every layer of a rank. `groups` has the indices of each group's layers; `warning` is to be shown."""

    spec: str
    layers: tuple[Layer, ...]
    groups: tuple[tuple[int, ...], ...]
    blocks: int
    block_size: int
    shared_between_ranks: bool
    """MLA, or asked for: the content is the same on every rank, rank 0 writes it and all read it."""
    warning: str | None = None

    @property
    def layer_bytes(self) -> tuple[int, ...]:
        return tuple(layer.block_bytes for layer in self.layers)

    @property
    def total_bytes(self) -> int:
        """Bytes of one rank's tensors."""
        return self.blocks * sum(self.layer_bytes)


def parse_groups(spec: str, *, num_blocks: int, block_size: int) -> tuple[Group, ...]:
    """The groups of `(kv_size,NB,BS,NH,HS):dtype:layers[;...]`; NB or BS of 0 take the options' values.

    Raises ScenarioError naming what is wrong.
    """
    groups = []
    for part in spec.split(";"):
        matched = FORM.fullmatch(part.strip())
        if matched is None:
            raise ScenarioError(
                f"--kvcache-shape-spec: {part.strip()!r} is not (kv_size,NB,BS,NH,HS):dtype:layers; "
                "groups are separated by ';'"
            )
        planes, blocks, size, heads, head_size = (int(matched[index]) for index in range(1, 6))
        dtype, layers = matched[6], int(matched[7])
        if dtype not in ITEM_BYTES:
            raise ScenarioError(
                f"--kvcache-shape-spec: dtype {dtype}: must be one of {', '.join(ITEM_BYTES)}"
            )
        group = Group(planes, blocks or num_blocks, size or block_size, heads, head_size, dtype, layers)
        if planes not in (1, 2) or min(group.blocks, group.block_size, heads, head_size, layers) < 1:
            raise ScenarioError(
                f"--kvcache-shape-spec: {part.strip()!r}: kv_size is 1 or 2, all other numbers are positive"
            )
        groups.append(group)
    if len({(group.blocks, group.block_size) for group in groups}) > 1:
        raise ScenarioError(
            "--kvcache-shape-spec: all groups must share NB and BS: blocks are paged together"
        )
    return tuple(groups)


def make_layout(
    spec: str, *, num_blocks: int = 1024, block_size: int = 16, engine_driven: bool, use_mla: bool
) -> Layout:
    """What to allocate and register for a spec.

    Engine-driven transfer knows one chunk shape per context: a spec that mixes MLA and classical layers takes the
    classical layout for all of them, with a warning; other specs of several shapes are refused.
    """
    groups = parse_groups(spec, num_blocks=num_blocks, block_size=block_size)
    classical = any(group.planes == 2 for group in groups)
    warning = None
    if engine_driven and len(groups) > 1:
        groups, warning = _one_shape(groups)
    indices, first = [], 0
    for group in groups:
        indices.append(tuple(range(first, first + group.layers)))
        first += group.layers
    return Layout(
        spec=spec,
        layers=tuple(_layer(group) for group in groups for _ in range(group.layers)),
        groups=tuple(indices),
        blocks=groups[0].blocks,
        block_size=groups[0].block_size,
        shared_between_ranks=use_mla or all(group.planes == 1 for group in groups),
        warning="; ".join(text for text in (warning, FOLDED if use_mla and classical else None) if text)
        or None,
    )


def _one_shape(groups: tuple[Group, ...]) -> tuple[tuple[Group, ...], str | None]:
    layers = sum(group.layers for group in groups)
    shapes = {(group.planes, group.heads, group.head_size, group.dtype) for group in groups}
    classical = next((group for group in groups if group.planes == 2), None)
    if len(shapes) == 1:
        return (_with_layers(groups[0], layers),), None
    if classical is None or all(group.planes == 2 for group in groups):
        raise ScenarioError(
            "--kvcache-shape-spec: engine_driven has one chunk shape per context and this spec has several; "
            "add --transfer-mode lmcache_driven"
        )
    mla = sum(group.layers for group in groups if group.planes == 1)
    return (_with_layers(classical, layers),), (
        f"engine_driven has one chunk shape per context: the {mla} MLA layers of this mixed spec TAKE THE CLASSICAL "
        f"LAYOUT (2,{classical.blocks},{classical.block_size},{classical.heads},{classical.head_size}):"
        f"{classical.dtype} of the others; --transfer-mode lmcache_driven measures them as MLA"
    )


def _with_layers(group: Group, layers: int) -> Group:
    return Group(
        group.planes, group.blocks, group.block_size, group.heads, group.head_size, group.dtype, layers
    )


def _layer(group: Group) -> Layer:
    if group.planes == 1:
        return Layer((group.blocks, group.block_size, group.heads * group.head_size), group.dtype)
    return Layer((2, group.blocks, group.block_size, group.heads, group.head_size), group.dtype)
