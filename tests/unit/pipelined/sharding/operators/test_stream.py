"""Layer norm on any split, with the statistics' bytes, and dropout."""

import pytest
import torch
from torch.nn import functional

from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import Mesh, Shards
from pipelined.sharding.operators.matmul import SplitMatmul
from pipelined.sharding.operators.stream import drop, layer_norm, mean_square, normalise_by_root
from pipelined.sharding.operators.verbs import Value
from tests.unit.pipelined.sharding.operators.ranks import CLOSE, beside, normal, on_ranks


def run(x, layout, token="S0:b", share=CLOSE, mesh="a=2 b=3"):
    """A norm of (B, T, C) on 2 x 3 ranks; returns the bytes that each rank sent."""
    mesh = Mesh(mesh)
    shards, size = Shards(mesh, x.shape, layout), x.shape[2]
    parameters = Shards(mesh, (size,), token)
    weight, bias = normal(size, seed=1), normal(size, seed=2)
    return beside(
        mesh.size,
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


@pytest.mark.parametrize(("mesh", "count"), [("a=2 b=2", 17), ("a=2 b=4", 17), ("a=2 b=4", 3), ("a=1 b=2", 12)])
@pytest.mark.parametrize(("layout", "token"), [("S0:a S2:b", "S0:b"), ("S2:b S2:a", "S0:b S0:a")])
def test_few_ranks_merge_their_statistics_of_parts_of_any_size(mesh, count, layout, token):
    """Of 3 numbers on 4 ranks one has none; both axes on one dimension are 4 or, past `GATHERED`, 8 ranks."""
    run(normal(5, 4, count), layout, token, mesh=mesh)


@pytest.mark.parametrize("mesh", ["a=2 b=2", "a=2 b=3", "a=1 b=6"])
def test_far_from_zero_no_digits_are_lost(mesh):
    """x is 1e6 with a deviation of 0.01: a sum of squares less a squared sum would leave no digit of the variance.

    x itself has eight digits of the deviation, so sums in another order differ in the eighth.
    """
    run(normal(4, 3, 12) * 1e-2 + 1e6, "S0:a S2:b", share=1e-7, mesh=mesh)


@pytest.mark.parametrize("ranks", [5, 6])
def test_two_numbers_a_token_are_summed_each_way(ranks):
    """Rings of p ranks with 15 tokens, 2 rows of ranks: 2(p-1)/p of the tokens, twice forward and twice backward."""
    tokens = 15 if ranks == 5 else 12
    bytes_sent = run(normal(2, tokens, 30), "S0:a S2:b", mesh=f"a=2 b={ranks}")
    assert bytes_sent == [pytest.approx(8 * 4 * 2 * (ranks - 1) / ranks * tokens)] * 2 * ranks


@pytest.mark.parametrize("ranks", [2, 5])
def test_an_rms_norm_sums_one_number_a_token_each_way(ranks):
    async def rms_norm(verbs, x, weight):
        return await normalise_by_root(verbs, x, await mean_square(verbs, x, [2]), [weight], dimensions=[2], eps=1e-3)

    mesh, x, weight = Mesh(f"a=2 b={ranks}"), normal(2, 10, 13), normal(13, seed=1)
    shards = Shards(mesh, x.shape, "S0:a S2:b")
    bytes_sent = beside(
        mesh.size,
        rms_norm,
        lambda x, weight: functional.rms_norm(x, (13,), weight, 1e-3),
        shards,
        [(x, shards)],
        [(weight, Shards(mesh, weight.shape, "S0:b"))],
    )
    assert bytes_sent == [pytest.approx(8 * 2 * 2 * (ranks - 1) / ranks * 10)] * 2 * ranks


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_few_ranks_send_two_numbers_a_token_to_each_other_in_one_move_each_way(ranks):
    bytes_sent = run(normal(2, 6, 12), "S0:a S2:b", mesh=f"a=2 b={ranks}")
    assert bytes_sent == [8 * 2 * 2 * (ranks - 1) * 6] * 2 * ranks


@pytest.mark.parametrize("ranks", [2, 5])
def test_a_norm_of_float16_does_not_overflow(ranks):
    """The squares of one token add up to 10^7, where float16 ends at 65,504: by few ranks and past `GATHERED`."""
    x, weight, bias = (tensor.half() for tensor in (500 * normal(2, 3, 60), normal(60, seed=1), normal(60, seed=2)))
    mesh, whole = Mesh(f"a={ranks}"), x.clone().requires_grad_()
    shards, parameters = Shards(mesh, x.shape, "S2:a"), Shards(mesh, (60,), "S0:a")
    plain = functional.layer_norm(whole, (60,), weight, bias)
    plain.backward(weight.expand_as(plain))

    async def work(tape):
        value = Value(shards.local(x, tape.rank), shards)
        scale = [parameters.local(tensor, tape.rank).requires_grad_() for tensor in (weight, bias)]

        async def stage():
            y = await layer_norm(tape, value, *scale)
            await tape.backward(y, parameters.local(weight, tape.rank).expand_as(y.array))
            return y

        return (await tape.run(stage())).array, value.gradient, *(tensor.grad for tensor in scale)

    for rank, (y, back, *scale) in enumerate(on_ranks(ranks, work)[0]):
        assert {tensor.dtype for tensor in (y, back, *scale)} == {torch.float16}
        torch.testing.assert_close(y, shards.local(plain.detach(), rank), atol=4e-3, rtol=4e-3)
        torch.testing.assert_close(back, shards.local(whole.grad, rank), atol=1e-4, rtol=1e-2)


def test_dropout_of_a_split_value_is_that_of_the_whole():
    operator, random = SplitMatmul((2, 2, 3), (7,), (11,)), KeyedRandom(4, 5, 6)
    shards = operator.output_shards((3, 2))
    sharded = lambda tape, x: drop(tape, x, 0.3, random.key("here"))  # noqa: E731
    plain = lambda x: random.dropout(x, 0.3, "here")  # noqa: E731
    assert beside(12, sharded, plain, shards, [(normal(3, 2, 11), shards)]) == [0] * 12
