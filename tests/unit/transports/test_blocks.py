"""Blocks: the same memory under both libraries' names, copied only where it must be."""

import numpy as np
import pytest
import torch

from transports import Block
from transports._blocks import SIZES


@pytest.mark.parametrize("name", sorted(SIZES))
def test_torch_and_numpy_agree_on_every_dtype(name):
    tensor = torch.arange(6).to(getattr(torch, name)).reshape(2, 3)
    block = Block.of(tensor)
    assert (block.dtype, block.shape, block.nbytes) == (name, (2, 3), 6 * SIZES[name])
    assert torch.equal(block.torch(), tensor)
    if name != "bfloat16":
        assert Block.of(tensor.numpy()) == block
        assert np.array_equal(block.numpy(), tensor.numpy())


def test_what_is_contiguous_is_viewed():
    for array in (np.zeros((2, 3)), np.zeros(()), torch.zeros(2, 3), bytearray(5), memoryview(bytearray(5))):
        Block.of(array).data[:] = b"\x01" * Block.of(array).nbytes
        assert set(bytes(Block.of(array).data)) == {1}


def test_what_is_not_contiguous_is_copied():
    array = np.arange(6).reshape(2, 3)
    assert Block.of(array.T).numpy().tolist() == array.T.tolist()
    assert Block.of(torch.from_numpy(array).T).numpy().tolist() == array.T.tolist()


def test_foreign_byte_order_is_turned_round():
    block = Block.of(np.array([1, 2, 3], ">i4"))
    assert (block.dtype, block.numpy().tolist()) == ("int32", [1, 2, 3])


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
def test_zeros_and_scalars_keep_their_shape(shape):
    for array in (np.ones(shape, np.float32), torch.ones(shape)):
        block = Block.of(array)
        assert block.numpy().shape == block.torch().shape == shape
        assert Block.empty("float32", shape).nbytes == block.nbytes
