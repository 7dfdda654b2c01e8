"""What an op means for each dtype, where its results go, and that nothing but views is allocated."""

import numpy as np
import pytest
import torch

from collectives.arrays import Vector
from collectives.reduction import Reduction


def test_an_unknown_op_lists_the_known():
    with pytest.raises(ValueError, match="unknown op 'prod'; known: max, mean, sum"):
        Reduction("prod", np.ones(1))


@pytest.mark.parametrize(
    ("op", "dtype", "says"),
    [
        ("mean", "int32", "no mean of int32; use sum"),
        ("mean", "bool", "no mean of bool"),
        ("sum", "bool", "no sum of bool; cast"),
        ("max", "complex64", "no max of complex64"),
    ],
)
@pytest.mark.parametrize("of", [np.ones, lambda shape, dtype: torch.ones(shape, dtype=getattr(torch, dtype))])
def test_an_op_without_meaning_for_the_dtype_is_refused(op, dtype, says, of):
    with pytest.raises(ValueError, match=says):
        Reduction(op, of(1, dtype))


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_results_are_written_into_the_given_array(make):
    first, second, out = make([1.0, 5.0]), make([2.0, 3.0]), make([0.0, 0.0])
    vectors = [Vector.of(array).elements for array in (first, second, out)]
    for arrays in ((first, second, out), vectors):
        Reduction("max", arrays[0]).combine(*arrays)
        assert out.tolist() == [2, 5] and first.tolist() == [1, 5]
    Reduction("sum", vectors[0]).combine(vectors[0], vectors[1], vectors[0])
    assert first.tolist() == [3, 8]


@pytest.mark.parametrize(
    ("dtype", "op", "expected"),
    [
        (torch.float64, "mean", [2.0, 3.0]),
        (torch.float16, "mean", [2.0, 3.0]),
        (torch.bfloat16, "mean", [2.0, 3.0]),
        (torch.complex64, "mean", [2.0, 3.0]),
        (torch.int32, "sum", [6, 9]),
        (torch.uint8, "max", [3, 4]),
        (torch.bool, "max", [True, True]),
        (np.dtype("float64"), "mean", [2.0, 3.0]),
        (np.dtype("float16"), "mean", [2.0, 3.0]),
        (np.dtype("int32"), "sum", [6, 9]),
    ],
    ids=str,
)
def test_arrays_that_are_not_contiguous_are_reduced_by_their_own_library(dtype, op, expected):
    whole = [[1, 0, 2, 0], [2, 0, 3, 0], [3, 0, 4, 0]]
    rows = np.array(whole).astype(dtype) if isinstance(dtype, np.dtype) else torch.tensor(whole).to(dtype)
    before = rows.tolist()
    into = rows[0][:2].copy() if isinstance(dtype, np.dtype) else rows[0][:2].clone()
    reduction = Reduction(op, into)
    reduction.combine_all([row[::2] for row in rows], into)
    reduction.finish(into, 3)
    assert into.tolist() == expected and rows.tolist() == before


def test_only_a_mean_is_divided():
    for op, expected in (("sum", 6.0), ("max", 6.0), ("mean", 2.0)):
        vector = Vector.of(torch.full((2,), 6.0, dtype=torch.bfloat16))
        Reduction(op, vector.elements).finish(vector.elements, 3)
        assert vector.elements.tolist() == [expected] * 2


def test_nothing_but_views_is_allocated():
    import tracemalloc

    vectors = [Vector.of(np.ones(1 << 20, "float32")) for _ in range(2)]
    reduction = Reduction("mean", vectors[0].elements)
    tracemalloc.start()
    reduction.combine(vectors[0].elements, vectors[1].elements, vectors[0].elements)
    reduction.finish(vectors[0].elements, 2)
    assert tracemalloc.get_traced_memory()[1] < 1 << 14
    tracemalloc.stop()
