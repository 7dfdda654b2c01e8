"""Embedding, head and cross-entropy over a split vocabulary, tied in one layout."""

import pytest
import torch
from torch.nn import functional

from pipelined.sharding import Shards
from pipelined.sharding.operators.matmul import SplitMatmul, multiply
from pipelined.sharding.operators.vocabulary import cross_entropy, embed, ids_shards
from tests.unit.pipelined.sharding.operators.ranks import beside, closed_form, normal

B, T, C, V = 5, 3, 7, 19
ROW = ("contraction", "columns")
FACTORS = [(1, 1, 1), (2, 1, 1), (1, 4, 1), (1, 1, 3), (2, 3, 2), (1, 2, 3), (3, 4, 1), (1, 5, 5)]


def ids(seed, rows=B, vocabulary=V):
    return torch.randint(vocabulary, (rows, T), generator=torch.Generator().manual_seed(seed))


def plain(ids, targets, weight):
    hidden = functional.embedding(ids, weight).square()
    return functional.cross_entropy((hidden @ weight.t()).flatten(0, 1), targets.flatten())


async def sharded(tape, head, ids, targets, weight):
    hidden = await embed(tape, head, ids, weight)
    hidden = await tape.compute("square", torch.square, hidden, result=hidden.shards)
    return await cross_entropy(tape, await multiply(tape, head, hidden, weight, transposed=True), targets)


@pytest.mark.parametrize("factors", FACTORS, ids=str)
def test_tied_ends_give_the_loss_and_gradient_of_one_matrix(factors):
    head = SplitMatmul(factors, (C,), (V,))
    id_shards = ids_shards(head, (B, T))
    beside(
        head.mesh.size,
        lambda tape, *operands: sharded(tape, head, *operands),
        plain,
        Shards(head.mesh, (), "P:rows"),
        [(ids(1), id_shards), (ids(2), id_shards)],
        [(normal(V, C) / 3, head.table)],
        replicated=ROW,
    )


@pytest.mark.parametrize("factors", [(2, 2, 2), (2, 4, 1), (1, 8, 1), (2, 1, 4)], ids=str)
def test_bytes_are_those_of_the_closed_form(factors):
    """Even sizes: the head's, the embedding's reduce-scatter and its gather back, and 3 numbers a token."""
    p0, p1, p2 = factors
    rows, width, vocabulary = 4, 16, 64
    head = SplitMatmul(factors, (width,), (vocabulary,))
    id_shards, m, q = ids_shards(head, (rows, T)), rows * T, p1 * p2
    bytes_sent = beside(
        head.mesh.size,
        lambda tape, *operands: sharded(tape, head, *operands),
        plain,
        Shards(head.mesh, (), "P:rows"),
        [(ids(1, rows, vocabulary), id_shards), (ids(2, rows, vocabulary), id_shards)],
        [(normal(vocabulary, width) / 3, head.table)],
        replicated=ROW,
    )
    forward, backward, _ = closed_form(head, m)
    embedding = 2 * (p1 - 1) / p1 * m * width / (p0 * p2)
    statistics = 3 * 2 * (q - 1) / q * m / p0
    total = 8 * (forward + backward + embedding + statistics)
    assert sum(bytes_sent) == pytest.approx(total * len(bytes_sent)) and max(bytes_sent) - total <= 8 * 6


def test_logits_far_apart_do_not_overflow():
    head = SplitMatmul((1, 2, 1), (C,), (V,))
    shards, id_shards = head.output_shards((B, T)), ids_shards(head, (B, T))
    large = normal(B, T, V) * 1e3
    beside(
        2,
        cross_entropy,
        lambda x, targets: functional.cross_entropy(x.flatten(0, 1), targets.flatten()),
        Shards(head.mesh, (), "P:rows"),
        [(large, shards), (ids(3), id_shards)],
        replicated=ROW,
    )
