"""Landing: the receiver's own arrays where they fit, fresh memory otherwise, and a word on what does not fit."""

import numpy as np
import pytest
import torch

from transports import Block
from transports.wire.frames import Layout
from transports.wire.landing import copied, destinations, fill, landing

LAYOUTS = [Layout("float32", (2, 3)), Layout("bfloat16", (4,))]


def test_without_arrays_memory_is_fresh_and_writable():
    blocks = landing(LAYOUTS)
    assert [(block.dtype, block.shape, block.nbytes) for block in blocks] == [
        ("float32", (2, 3), 24),
        ("bfloat16", (4,), 8),
    ]
    assert not any(block.data.readonly for block in blocks)


def test_arrays_of_any_kind_are_filled_in_place():
    arrays = [np.zeros((3, 2), np.float32), torch.zeros(4, dtype=torch.bfloat16)]
    source = [Block.of(np.arange(6, dtype=np.float32)), Block.of(torch.arange(4, dtype=torch.bfloat16))]
    fill(landing(LAYOUTS, destinations(arrays)), source)
    assert arrays[0].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert arrays[1].tolist() == [0, 1, 2, 3]
    room = [bytearray(24), memoryview(bytearray(8))]
    fill(landing(LAYOUTS, destinations(room)), source)
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
        landing(LAYOUTS, destinations(into))
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_copy_has_memory_of_its_own():
    array = np.arange(5)
    (block,) = copied([Block.of(array)])
    array[:] = 0
    assert block.numpy().tolist() == [0, 1, 2, 3, 4]
