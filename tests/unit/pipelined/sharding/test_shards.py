"""Shards: which indices each rank holds, beside numpy's own cuts."""

import numpy as np
import pytest
import torch

from pipelined.errors import UsageError
from pipelined.sharding import Mesh, Shards
from pipelined.sharding.shards import TensorPart, merge_dimensions, take

WHOLE = np.arange(15.0).reshape(5, 3)


def test_rows_are_cut_as_rows_and_not_as_flat_segments():
    shards = Shards(Mesh("a=2"), (5, 3), "S0:a")
    assert [shards.size(rank) for rank in range(2)] == [6, 9]
    assert [shards.pieces(rank) for rank in range(2)] == [(((0, 2),), ((0, 3),)), (((2, 5),), ((0, 3),))]


@pytest.mark.parametrize(
    ("layout", "rank", "rows", "columns"),
    [
        ("B", 3, [0, 1, 2, 3, 4], [0, 1, 2]),
        ("S1:node S0:gpu", 0, [0, 1], [0]),
        ("S1:node S0:gpu", 3, [2, 3, 4], [1, 2]),
        ("S0:node S0:gpu", 1, [1], [0, 1, 2]),  # 2 rows of node 0, its second half
        ("S0:node S0:gpu", 2, [2], [0, 1, 2]),  # 3 rows of node 1
        ("S0:gpu S0:node", 1, [2], [0, 1, 2]),
        ("S0/2:gpu", 0, [0, 2], [0, 1, 2]),  # of 2 rows the first, of 3 rows the first
        ("S0/2:gpu", 1, [1, 3, 4], [0, 1, 2]),
    ],
)
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_a_rank_holds_the_named_rows_and_columns(kind, layout, rank, rows, columns):
    shards = Shards(Mesh("node=2 gpu=2"), (5, 3), layout)
    local = shards.local(kind(WHOLE), rank)
    assert shards.shape(rank) == tuple(local.shape) == (len(rows), len(columns))
    np.testing.assert_array_equal(np.asarray(local), WHOLE[np.ix_(rows, columns)])


def test_a_weights_columns_are_strided_where_its_products_are_not():
    """Rank q = c p1 + b of a row of ranks holds block q of the product, its weight blocks c p1 + b for all c."""
    mesh, columns = Mesh("c=2 b=3"), 12
    product = Shards(mesh, (1, columns), "S1:c S1:b")
    assert [product.pieces(q)[1] for q in range(6)] == [((2 * q, 2 * q + 2),) for q in range(6)]
    weight = Shards(mesh, (8, columns), "S0:c S1/2:b")
    for c in range(2):
        for b in range(3):
            rows, column_blocks = weight.pieces(3 * c + b)
            assert rows == ((4 * c, 4 * c + 4),)
            assert column_blocks == tuple((2 * q, 2 * q + 2) for q in (b, 3 + b))


def test_each_of_three_parts_is_split_by_heads():
    """Queries, keys and values of 4 heads of 5 columns side by side; a rank holds two heads of each."""
    heads = Shards(Mesh("a=2"), (7, 60), "S1/3:a").pieces(1)[1]
    assert heads == ((10, 20), (30, 40), (50, 60))


@pytest.mark.parametrize("shape", [(0, 3), (1, 0), (1,), (2, 3, 1)])
@pytest.mark.parametrize("layout", ["S0:b S0:a", "S0/3:b S0:a"])
def test_pieces_of_any_length_are_disjoint_and_complete(shape, layout):
    shards = Shards(Mesh("a=5 b=2"), shape, layout)
    counts = np.zeros(shape, int)
    for rank in range(10):
        counts[np.ix_(*([i for low, high in ranges for i in range(low, high)] for ranges in shards.pieces(rank)))] += 1
    assert (counts == 1).all()


def test_of_a_sum_the_first_rank_holds_the_tensor():
    whole = np.ones(3)
    values = {
        op: [Shards(Mesh("a=2"), (3,), f"P{op}:a").local(whole, r).tolist() for r in (0, 1)] for op in ("", "mean")
    }
    assert values == {"": [[1, 1, 1], [0, 0, 0]], "mean": [[1, 1, 1], [1, 1, 1]]}


@pytest.mark.parametrize(
    ("shape", "layout", "says"),
    [
        ((5, 3), "S0:row", "no axis 'row' .*known: a"),
        ((5, 3), "P:row", "no axis 'row'"),
        ((5, 3), "S2:a", r"no dimension 2 to split \(layout: 'S2:a', dimensions: 2\)"),
        ((5, -3), "S1:a", "negative length"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(shape, layout, says):
    with pytest.raises(UsageError, match=says):
        Shards(Mesh("a=2"), shape, layout)


def test_a_tensor_of_another_shape_is_refused():
    with pytest.raises(UsageError, match=r"shape: \(2,\), layout's: \(3,\)"):
        Shards(Mesh("a=2"), (3,), "S0:a").local(np.ones(2), 0)


def test_pieces_of_a_matrix_by_rows_and_columns_with_copies():
    """Listing 1 of AutoDDL: columns by 2, rows by 3, each piece on 4 ranks."""
    weight = Shards(Mesh("columns=2 rows=3 copies=4"), (6, 4), "S1:columns S0:rows")
    tensor = np.arange(24).reshape(6, 4)
    for rank in range(4, 8):
        assert weight.local(tensor, rank).tolist() == [[8, 9], [12, 13]]
    assert weight.local(tensor, 23).tolist() == [[18, 19], [22, 23]]


@pytest.mark.parametrize(
    ("lengths", "shape", "layout"),
    [
        ((4, 3, 6, 2), (4, 36), "S0:a S2:b"),  # queries, keys and values by heads
        ((6, 2, 5), (12, 5), "S0:a S2/2:b"),  # heads before
        ((3, 6, 2), (36,), "S1:b S1:a"),
        ((5, 1, 1), (5,), "S0:a S0:b"),
        ((4, 3), (4, 3), "S1:a"),
        ((2, 0, 3), (2, 0), "S0:a"),
    ],
)
def test_indices_of_merged_dimensions_are_those_of_the_reshaped_tensor(lengths, shape, layout):
    shards, whole = Shards(Mesh("a=2 b=3"), lengths, layout), np.arange(np.prod(lengths)).reshape(lengths)
    for rank in range(6):
        part = TensorPart(shape, merge_dimensions(shards.pieces(rank), lengths, shape))
        np.testing.assert_array_equal(
            take(whole.reshape(shape), part.indices).ravel(), shards.local(whole, rank).ravel()
        )
        assert part.shape == take(whole.reshape(shape), part.indices).shape


def test_dimensions_that_cannot_be_merged_are_refused():
    with pytest.raises(UsageError, match=r"dimensions that cannot be merged \(from: \(4, 3\), to: \(6, 2\)\)"):
        merge_dimensions((((0, 4),), ((0, 3),)), (4, 3), (6, 2))
