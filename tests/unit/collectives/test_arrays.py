"""Arrays and tensors are viewed as flat memory, never copied; what cannot be is refused. Cuts cover what they cut."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from collectives import segment, segments
from collectives.arrays import Vector, pieces


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
    vector = Vector.of(tensor).over(memory)
    assert vector.elements.dtype == Vector.of(tensor).elements.dtype
    assert vector.nbytes == memory.nbytes


def test_a_file_in_memory_is_viewed(tmp_path):
    array = np.memmap(tmp_path / "array", "float32", "w+", shape=(2, 3))
    Vector.of(array).elements[:] = 2
    assert (array == 2).all()


def frozen():
    array = np.zeros(3)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("array", "error", "says"),
    [
        ([1.0, 2.0], TypeError, "type: list"),
        (np.zeros((1, 2)).view(np.matrix), TypeError, r"type: matrix\); pass a numpy array"),
        (np.ma.array([1.0, 2.0]), TypeError, "type: MaskedArray"),
        (np.zeros((4, 4)).T[1:], ValueError, "not contiguous"),
        (torch.zeros(4, 4).T, ValueError, r"contiguous \(shape: \(4, 4\)\)"),
        (frozen(), ValueError, "read-only"),
        (torch.zeros(3, device="meta"), ValueError, "device: meta"),
        (np.array([None, None]), ValueError, "dtype object has no wire form; convert the array to one of bool"),
        (np.zeros(3, ">f4"), ValueError, r"another machine's byte order \(dtype: >f4\); use .astype\('float32'\)"),
        (torch.zeros(3, dtype=torch.complex64).conj(), ValueError, "lazy conjugate"),
    ],
)
def test_arrays_that_cannot_be_written_in_place_are_refused(array, error, says):
    with pytest.raises(error, match=says):
        Vector.of(array)


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_segments_cover_the_array_evenly(length, parts):
    cut = segments(length, parts)
    assert [high for _, high in cut[:-1]] == [low for low, _ in cut[1:]]
    assert (cut[0][0], cut[-1][1], len(cut)) == (0, length, parts)
    sizes = {high - low for low, high in cut}
    assert max(sizes) - min(sizes) <= 1
    assert cut == [segment(length, parts, index) for index in range(parts)]


@given(st.integers(0, 1 << 22), st.integers(0, 1 << 22), st.integers(1 << 16, 1 << 21))
def test_pieces_cover_a_range_within_their_bound(low, count, most):
    cut = list(pieces(low, low + count, most))
    assert sum(high - start for start, high in cut) == count
    assert all(0 < high - start <= most for start, high in cut)
    assert [start for start, _ in cut] == ([low] + [high for _, high in cut[:-1]])[: len(cut)]
