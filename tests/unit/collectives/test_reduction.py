"""What an op means for each dtype, where its results go, and that nothing but views is allocated."""

import numpy as np
import pytest
import torch

from collectives.arrays import Vector
from collectives.reduction import Reduction


def test_an_unknown_op_lists_the_known():
    with pytest.raises(ValueError, match="unknown op 'prod'; known: max, mean, sum"):
        Reduction("prod", Vector.of(np.ones(1)))


@pytest.mark.parametrize(
    ("op", "dtype", "says"),
    [
        ("mean", "int32", "no mean of int32; use sum"),
        ("mean", "bool", "no mean of bool"),
        ("sum", "bool", "no sum of bool; cast"),
        ("max", "complex64", "no max of complex64"),
    ],
)
def test_an_op_without_meaning_for_the_dtype_is_refused(op, dtype, says):
    with pytest.raises(ValueError, match=says):
        Reduction(op, Vector.of(np.ones(1, dtype)))


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_results_are_written_into_the_given_array(make):
    first, second, out = make([1.0, 5.0]), make([2.0, 3.0]), make([0.0, 0.0])
    vector = Vector.of(first)
    Reduction("max", vector).combine(*(Vector.of(array).elements for array in (first, second, out)))
    assert out.tolist() == [2, 5] and first.tolist() == [1, 5]
    Reduction("sum", vector).combine(Vector.of(first).elements, Vector.of(second).elements, vector.elements)
    assert first.tolist() == [3, 8]


def test_only_a_mean_is_divided():
    for op, expected in (("sum", 6.0), ("max", 6.0), ("mean", 2.0)):
        vector = Vector.of(torch.full((2,), 6.0, dtype=torch.bfloat16))
        Reduction(op, vector).finish(vector.elements, 3)
        assert vector.elements.tolist() == [expected] * 2


def test_nothing_but_views_is_allocated():
    import tracemalloc

    vectors = [Vector.of(np.ones(1 << 20, "float32")) for _ in range(2)]
    reduction = Reduction("mean", vectors[0])
    tracemalloc.start()
    reduction.combine(vectors[0].elements, vectors[1].elements, vectors[0].elements)
    reduction.finish(vectors[0].elements, 2)
    assert tracemalloc.get_traced_memory()[1] < 1 << 14
    tracemalloc.stop()
