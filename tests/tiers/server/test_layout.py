"""Shape specs, and what a sequence's blocks hold."""

import hashlib
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import ScenarioError
from tiers.server.layout import ITEM_BYTES, Layout, make_layout
from tiers.server.sequence import Sequences


def layout(spec: str, *, engine_driven: bool = False, use_mla: bool = False) -> Layout:
    return make_layout(spec, engine_driven=engine_driven, use_mla=use_mla)


@given(
    st.sampled_from([1, 2]),
    st.integers(1, 64),
    st.integers(1, 32),
    st.integers(1, 16),
    st.integers(1, 128),
    st.sampled_from(sorted(ITEM_BYTES)),
    st.integers(1, 8),
)
def test_a_group_has_its_layers_with_their_shape_and_bytes(
    planes: int, blocks: int, size: int, heads: int, width: int, dtype: str, layers: int
) -> None:
    made = layout(f"({planes},{blocks},{size},{heads},{width}):{dtype}:{layers}")
    shape = (blocks, size, heads * width) if planes == 1 else (2, blocks, size, heads, width)
    assert [layer.shape for layer in made.layers] == [shape] * layers
    assert (
        made.total_bytes
        == math.prod(shape) * np.dtype(dtype.replace("bfloat16", "float16")).itemsize * layers
    )
    assert made.shared_between_ranks is (planes == 1)


def test_groups_share_blocks_and_have_layers_of_their_own() -> None:
    made = layout("(1,64,16,1,128):float16:4;(2,64,16,8,128):float16:28")
    assert made.groups == (tuple(range(4)), tuple(range(4, 32)))
    assert (len(made.layers[0].shape), len(made.layers[4].shape)) == (3, 5)
    assert not made.shared_between_ranks


def test_zeros_take_the_options() -> None:
    made = make_layout(
        "(2,0,0,2,8):float16:1", num_blocks=7, block_size=5, engine_driven=False, use_mla=False
    )
    assert (made.blocks, made.block_size) == (7, 5)


def test_engine_driven_with_a_mixed_spec_takes_the_classical_layout_and_says_so_loudly() -> None:
    made = layout("(1,64,16,1,128):float16:4;(2,64,16,8,128):float16:28", engine_driven=True)
    assert [layer.shape for layer in made.layers] == [(2, 64, 16, 8, 128)] * 32
    assert made.groups == (tuple(range(32)),)
    assert "TAKE THE CLASSICAL LAYOUT" in str(made.warning)
    assert "4 MLA layers" in str(made.warning)


def test_engine_driven_joins_groups_of_one_shape_without_a_word() -> None:
    made = layout("(2,64,16,8,128):float16:4;(2,64,16,8,128):float16:2", engine_driven=True)
    assert (len(made.layers), len(made.groups), made.warning) == (6, 1, None)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("", "is not"),
        ("(2,64,16,8):float16:4", "is not"),
        ("(2,64,16,8,128):float16", "is not"),
        ("(2,64,16,8,128):float16:4;", "is not"),
        ("(2,64,16,8,-1):float16:4", "is not"),
        ("(3,64,16,8,128):float16:4", "kv_size is 1 or 2"),
        ("(2,64,16,0,128):float16:4", "positive"),
        ("(2,64,16,8,128):float16:0", "positive"),
        ("(2,64,16,8,128):float8:4", "dtype float8"),
        ("(2,64,16,8,128):float16:4;(2,32,16,8,128):float16:4", "share NB and BS"),
    ],
)
def test_bad_specs_are_refused(spec: str, problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        layout(spec)


def test_what_engine_driven_cannot_do_names_the_other_way() -> None:
    with pytest.raises(ScenarioError, match="--transfer-mode lmcache_driven"):
        layout("(2,64,16,8,128):float16:4;(2,64,16,4,128):float16:2", engine_driven=True)


def test_use_mla_folds_the_ranks_whatever_the_spec_says() -> None:
    folded = layout("(2,64,16,8,128):float16:4", use_mla=True)
    assert folded.shared_between_ranks
    assert [layer.planes for layer in folded.layers] == [2] * 4
    assert "kv_size 2 keeps classical tensors" in (folded.warning or "")
    assert layout("(1,64,16,1,128):float16:4", use_mla=True).warning is None
    assert not layout("(2,64,16,8,128):float16:4").shared_between_ranks


SEQUENCES = Sequences(3, layout("(2,64,4,2,8):float16:3"), tokens=64, blocks=16)


@given(st.integers(0, 10**6))
def test_blocks_to_store_from_and_to_retrieve_into_never_meet(number: int) -> None:
    source, destination = SEQUENCES.source(number), SEQUENCES.destination(number)
    assert len(set(source)) == len(set(destination)) == 16
    assert not set(source) & set(destination)
    assert min(source) >= 0
    assert max(destination) < 64
    assert destination != sorted(destination)


@given(st.integers(0, 10**6))
def test_sequences_share_no_first_chunk(number: int) -> None:
    assert SEQUENCES.token_ids(number)[:32] != SEQUENCES.token_ids(number + 1)[:32]
    assert len(SEQUENCES.token_ids(number)) == 64


def test_every_block_of_every_layer_rank_and_sequence_is_different() -> None:
    seen = {
        block.tobytes()
        for number in range(3)
        for rank in range(2)
        for layer in range(3)
        for block in SEQUENCES.content(number, rank, layer)
    }
    assert len(seen) == 3 * 2 * 3 * 16


def test_mla_is_the_same_on_every_rank() -> None:
    mla = Sequences(3, layout("(1,64,4,1,8):bfloat16:2"), tokens=64, blocks=16)
    assert np.array_equal(mla.content(0, 0, 1), mla.content(0, 5, 1))


def test_checksums_by_hand() -> None:
    """Per chunk and layer: for each plane, the chunk's blocks one after the other; bfloat16 widened to float32."""
    sequences = Sequences(1, layout("(2,8,2,1,2):bfloat16:2"), tokens=8, blocks=4)
    expected = []
    for chunk in (0, 1):
        digest = hashlib.md5(usedforsecurity=False)
        for layer in (0, 1):
            rows = [row.tobytes() for row in sequences.content(9, 1, layer)[2 * chunk : 2 * chunk + 2]]
            for plane in (0, 1):
                for row in rows:
                    half = row[plane * len(row) // 2 : (plane + 1) * len(row) // 2]
                    for value in struct.unpack(f"<{len(half) // 2}H", half):
                        digest.update(struct.pack("<I", value << 16))
        expected.append(digest.hexdigest())
    assert sequences.checksums(9, 1, 2) == expected
