"""Arrays and tensors are viewed as flat memory, never copied; what cannot be is refused."""

import numpy as np
import pytest
import torch

from collectives.arrays import Vector


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (2, 0, 5)])
def test_a_tensor_is_viewed_never_copied(dtype, shape):
    tensor = torch.zeros(shape, dtype=getattr(torch, dtype))
    vector = Vector.of(tensor)
    assert (len(vector), vector.dtype, vector.itemsize) == (tensor.numel(), dtype, tensor.element_size())
    assert vector.data.nbytes == vector.nbytes == tensor.nbytes
    vector.data[:] = b"\x01" * tensor.nbytes
    assert bytes(Vector.of(tensor.clone()).data) == b"\x01" * tensor.nbytes


def test_a_parameter_that_wants_gradients_is_viewed():
    weight = torch.nn.Parameter(torch.zeros(3))
    Vector.of(weight).elements[:] = 2
    assert weight.tolist() == [2, 2, 2]


def test_slices_and_bytes_share_the_memory():
    array = np.arange(10, dtype="int32")
    part = Vector.of(array).slice(2, 6)
    assert part.elements.tolist() == [2, 3, 4, 5]
    part.bytes(1, 2)[:] = b"\xff" * 4
    assert array[3] == -1


@pytest.mark.parametrize("tensor", [torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2), np.zeros(2, "int16")])
def test_other_memory_is_seen_with_the_same_dtype(tensor):
    memory = np.zeros(6, "uint8")[:4] if Vector.of(tensor).itemsize == 4 else np.zeros(6, "uint8")
    seen = Vector.of(tensor).over(memory)
    assert seen.elements.dtype == Vector.of(tensor).elements.dtype
    assert seen.nbytes == memory.nbytes


def frozen():
    array = np.zeros(3)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("array", "error", "says"),
    [
        ([1.0, 2.0], TypeError, "type: list"),
        (np.zeros((4, 4)).T[1:], ValueError, "not contiguous"),
        (torch.zeros(4, 4).T, ValueError, r"contiguous \(shape: \(4, 4\)\)"),
        (frozen(), ValueError, "read-only"),
        (torch.zeros(3, device="meta"), ValueError, "device: meta"),
        (np.array([None, None]), ValueError, "dtype object has no wire form; convert the array to one of bool"),
        (np.zeros(3, ">f4"), ValueError, r"another machine's byte order \(dtype: >f4\); use .astype\('float32'\)"),
        (torch.zeros(3, dtype=torch.complex64).conj(), ValueError, "lazy conjugate"),
    ],
)
def test_what_cannot_be_written_in_place_is_refused(array, error, says):
    with pytest.raises(error, match=says):
        Vector.of(array)
