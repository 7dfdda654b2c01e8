"""Blocks: the same memory under both libraries' names, copied only where it must be."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as drawn

from collectives.arrays import Vector
from transports import Block, WireError
from transports.wire.arrays import SIZES, ArrayType, as_targets, blocks_for, copied, fill, flat_bytes, writable_bytes

PLAIN = drawn.scalar_dtypes() | drawn.complex_number_dtypes()  # of either byte order, dates included
WITHOUT = st.sampled_from([np.dtype(name) for name in ("O", "S3", "U2", "V5", "M8[s]", "m8[ns]", "g", "G")])
ANY_DTYPE = PLAIN | WITHOUT | drawn.array_dtypes(PLAIN | WITHOUT, max_size=3)


@pytest.mark.parametrize("name", sorted(SIZES))
def test_torch_and_numpy_agree_on_every_dtype(name):
    tensor = torch.arange(6).to(getattr(torch, name)).reshape(2, 3)
    block = Block.of(tensor)
    assert (block.dtype, block.shape, block.nbytes) == (name, (2, 3), 6 * SIZES[name])
    assert torch.equal(block.torch(), tensor)
    if name != "bfloat16":
        assert Block.of(tensor.numpy()) == block
        assert np.array_equal(block.numpy(), tensor.numpy())


def test_contiguous_arrays_are_viewed():
    for array in (np.zeros((2, 3)), np.zeros(()), torch.zeros(2, 3), bytearray(5), memoryview(bytearray(5))):
        Block.of(array).data[:] = b"\x01" * Block.of(array).nbytes
        assert set(bytes(Block.of(array).data)) == {1}


def test_other_arrays_are_copied():
    array = np.arange(6).reshape(2, 3)
    assert Block.of(array.T).numpy().tolist() == array.T.tolist()
    assert Block.of(torch.from_numpy(array).T).numpy().tolist() == array.T.tolist()


def test_foreign_byte_order_is_turned_round():
    block = Block.of(np.array([1, 2, 3], ">i4"))
    assert (block.dtype, block.numpy().tolist()) == ("int32", [1, 2, 3])


@given(ANY_DTYPE, st.sampled_from([0, 1, 3]))
def test_a_dtype_travels_with_its_values_or_is_refused_by_name_wherever_it_comes_in(dtype, items):
    array = np.zeros(items, dtype)
    if array.dtype.newbyteorder("=").name in SIZES:
        values = np.frombuffer(np.random.default_rng(1).bytes(array.nbytes), array.dtype)
        assert Block.of(values).numpy().tobytes() == values.astype(array.dtype.newbyteorder("=")).tobytes()
        return
    for refuses, error in (
        (Block.of, WireError),
        (Vector.of, ValueError),
        (lambda x: as_targets([x]), ValueError),
    ):
        with pytest.raises(error, match="wire form") as refused:
            refuses(array)
        assert str(array.dtype) in str(refused.value) and "float32" in str(refused.value)


def test_a_lazily_conjugated_tensor_is_sent_with_the_values_that_it_shows():
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert torch.equal(Block.of(tensor).torch(), tensor.resolve_conj())
    assert torch.equal(Block.of(tensor.imag).torch(), torch.tensor([-2.0, 4.0]))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "uint1"])
def test_a_torch_dtype_without_a_wire_form_is_refused_by_name(dtype):
    tensor = torch.empty(3, dtype=getattr(torch, dtype))
    with pytest.raises(WireError, match=f"{dtype} has no wire form"):
        Block.of(tensor)
    with pytest.raises(ValueError, match=f"{dtype} has no wire form"):
        Vector.of(tensor)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
def test_zeros_and_scalars_keep_their_shape(shape):
    for array in (np.ones(shape, np.float32), torch.ones(shape)):
        block = Block.of(array)
        assert block.numpy().shape == block.torch().shape == shape
        assert Block.empty("float32", shape).nbytes == block.nbytes


@pytest.mark.parametrize("shape", [(0,), (2, 0), (3, 0, 2)])
def test_a_buffer_without_bytes_has_no_gap_whatever_its_shape(shape):
    array = np.ones(shape)
    assert flat_bytes(array.data) == writable_bytes(array.data) == Block.of(array.data).data == b""
    array.flags.writeable = False
    assert flat_bytes(array.data) == b""
    with pytest.raises(ValueError, match="read-only"):
        writable_bytes(array.data)


LAYOUTS = [ArrayType("float32", (2, 3)), ArrayType("bfloat16", (4,))]


def test_without_arrays_memory_is_fresh_and_writable():
    blocks = blocks_for(LAYOUTS)
    assert [(block.dtype, block.shape, block.nbytes) for block in blocks] == [
        ("float32", (2, 3), 24),
        ("bfloat16", (4,), 8),
    ]
    assert not any(block.data.readonly for block in blocks)


def test_arrays_of_any_kind_are_filled_in_place():
    arrays = [np.zeros((3, 2), np.float32), torch.zeros(4, dtype=torch.bfloat16)]
    source = [Block.of(np.arange(6, dtype=np.float32)), Block.of(torch.arange(4, dtype=torch.bfloat16))]
    fill(blocks_for(LAYOUTS, as_targets(arrays)), source)
    assert arrays[0].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert arrays[1].tolist() == [0, 1, 2, 3]
    room = [bytearray(24), memoryview(bytearray(8))]
    fill(blocks_for(LAYOUTS, as_targets(room)), source)
    assert bytes(room[0]) == np.arange(6, dtype=np.float32).tobytes()


@pytest.mark.parametrize(
    ("into", "words"),
    [
        ([], ["arrays: 0", "blocks: 2"]),
        ([bytearray(24), bytearray(9)], ["into[1]", "9", "8"]),
        ([np.zeros((6, 2), np.float32)[:, 0], bytearray(8)], ["into[0]", "contiguous"]),
        ([torch.zeros(6, 2)[:, 0], bytearray(8)], ["into[0]", "contiguous"]),
        ([[0.0] * 6, bytearray(8)], ["into[0]", "contiguous"]),
        ([bytearray(24), memoryview(bytes(8))], ["into[1]", "read-only"]),
        ([bytearray(24), bytes(8)], ["into[1]", "read-only"]),
        ([np.zeros(6, ">f4"), bytearray(8)], ["into[0]", "byte order"]),
        ([torch.zeros(3, dtype=torch.complex64).conj(), bytearray(8)], ["into[0]", "in place"]),
        ([np.array([None] * 3), bytearray(8)], ["into[0]", "dtype object has no wire form", "float32"]),
        ([bytearray(24), memoryview(np.array([None]))], ["into[1]", "no wire form"]),
        ([bytearray(24), torch.zeros(8, dtype=torch.float8_e5m2)], ["into[1]", "float8_e5m2 has no wire form"]),
    ],
)
def test_what_does_not_fit_is_named(into, words):
    with pytest.raises(ValueError) as error:
        blocks_for(LAYOUTS, as_targets(into))
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_copy_has_memory_of_its_own():
    array = np.arange(5)
    (block,) = copied([Block.of(array)])
    array[:] = 0
    assert block.numpy().tolist() == [0, 1, 2, 3, 4]
