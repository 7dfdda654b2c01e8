"""Layer norm on any split, with the statistics' bytes, and dropout."""

import pytest
from torch.nn import functional

from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import Mesh, Shards
from pipelined.sharding.operators.matmul import SplitMatmul
from pipelined.sharding.operators.stream import drop, layer_norm
from tests.unit.pipelined.sharding.operators.ranks import CLOSE, beside, normal


def run(x, layout, token="S0:b", share=CLOSE):
    """A norm of (B, T, C) on 2 x 3 ranks; returns the bytes that each rank sent."""
    mesh = Mesh("a=2 b=3")
    shards, size = Shards(mesh, x.shape, layout), x.shape[2]
    parameters = Shards(mesh, (size,), token)
    weight, bias = normal(size, seed=1), normal(size, seed=2)
    return beside(
        6,
        layer_norm,
        lambda x, weight, bias: functional.layer_norm(x, (size,), weight, bias),
        shards,
        [(x, shards)],
        [(weight, parameters), (bias, parameters)],
        share=share,
    )


@pytest.mark.parametrize(
    ("layout", "token"),
    [
        ("S0:a S2:b", "S0:b"),
        ("S2:a S2:b", "S0:a S0:b"),
        ("S1:a S2:b", "S0:b"),
        ("S0:a S1:b", "B"),
        ("S0:a S2/2:b", "S0/2:b"),
    ],
)
def test_a_norm_of_split_tokens_is_that_of_whole_ones(layout, token):
    run(normal(5, 4, 17), layout, token)


def test_far_from_zero_no_digits_are_lost():
    """x is 1e6 with a deviation of 0.01: a sum of squares less a squared sum would leave no digit of the variance.

    x itself has eight digits of the deviation, so sums in another order differ in the eighth.
    """
    run(normal(4, 3, 12) * 1e-2 + 1e6, "S0:a S2:b", share=1e-7)


def test_two_numbers_a_token_are_sent_each_way():
    """Rings of 3 ranks with 4 tokens, 2 rows of ranks: 2(p-1)/p of the tokens, twice forward and twice backward."""
    assert run(normal(4, 3, 12), "S0:a S2:b") == [8 * 4 * 2 * 2 / 3 * 6] * 6


def test_dropout_of_a_split_value_is_that_of_the_whole():
    operator, random = SplitMatmul((2, 2, 3), (7,), (11,)), KeyedRandom(4, 5, 6)
    shards = operator.leaving((3, 2))
    sharded = lambda tape, x: drop(tape, x, 0.3, random.key("here"))  # noqa: E731
    plain = lambda x: random.dropout(x, 0.3, "here")  # noqa: E731
    assert beside(12, sharded, plain, shards, [(normal(3, 2, 11), shards)]) == [0] * 12
