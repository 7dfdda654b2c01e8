"""The 2-D and 3-D multiplication against torch, its bytes against the closed form."""

import asyncio
import weakref

import pytest
import torch

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import RealClock
from pipelined.sharding import MeshGroups
from pipelined.sharding.collective_moves import AllGather
from pipelined.sharding.operators.matmul import SplitMatmul, multiply, sharded_weight
from pipelined.sharding.operators.stage_record import ComputeStep, piece, record
from pipelined.sharding.operators.tape import Tape
from pipelined.sharding.operators.verbs import ShardedWeight, Value
from pipelined.sharding.operators.vocabulary import embed, ids_shards
from pipelined.training.stages.team_stage import input_half
from tests.unit.pipelined.sharding.operators.ranks import (
    CLOSE,
    beside,
    close,
    closed_form,
    normal,
    on_ranks,
    together,
    triples,
)
from transports.local import world


def run(operator, lead, inputs=None):
    """One multiplication with a bias; returns the bytes that each rank sent in both directions."""
    p = operator.mesh.size
    x, w, b = (
        normal(*lead, *operator.inputs),
        normal(*operator.weight.lengths, seed=1),
        normal(*operator.outputs, seed=2),
    )
    k = len(operator.inputs)
    return beside(
        p,
        lambda tape, x, w, b: multiply(tape, operator, x, w, b),
        lambda x, w, b: torch.tensordot(x, w, k) + b,
        operator.output_shards(lead),
        [(x, inputs or operator.input_shards(lead))],
        [(w, operator.weight), (b, operator.bias)],
    )


@pytest.mark.parametrize("factors", triples(12, always=(6, 12)))
def test_every_split_of_twelve_ranks_multiplies(factors):
    """Uneven sizes, some of them smaller than the ranks that split them."""
    run(SplitMatmul(factors, (7,), (11,)), (5, 2))


@pytest.mark.parametrize("factors", [(2, 2, 2), (1, 2, 3), (3, 2, 1), (2, 1, 4), (2, 3, 2)], ids=str)
def test_heads_are_split_whole(factors):
    run(SplitMatmul(factors, (7,), (3, 12, 2), cut=1), (4, 3))
    run(SplitMatmul(factors, (12, 2), (7,)), (4, 3))


@pytest.mark.parametrize("factors", triples(12, always=(8,)))
def test_even_sizes_send_what_the_closed_form_says(factors):
    p0, p1, p2 = factors
    operator = SplitMatmul(factors, (p1 * p2 * 2,), (p1 * p2 * 3,))
    forward, backward, _ = closed_form(operator, p0 * 2)
    assert run(operator, (p0, 2)) == [8 * (forward + backward)] * operator.mesh.size


def test_known_numbers_of_elements():
    """(2,2,2), m 64, k 96, n 128; and n x n with p = q³: 2(q-1)/q³ · n² in the forward."""
    assert closed_form(SplitMatmul((2, 2, 2), (96,), (128,)), 64) == (1792, 1792, 3072)
    assert closed_form(SplitMatmul((3, 3, 3), (54,), (54,)), 54)[0] == 2 * 2 / 27 * 54**2
    assert run(SplitMatmul((2, 2, 2), (96,), (128,)), (8, 8)) == [8 * 2 * 1792] * 8


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ([(1, 4, 1), (1, 1, 4)], (12288, 12288, 0)),
        ([(4, 1, 1), (4, 1, 1)], (0, 0, 196608)),
        ([(2, 2, 1), (2, 1, 2)], (4096, 4096, 65536)),
    ],
    ids=str,
)
def test_known_bytes_of_a_feed_forward_network(factors, expected):
    """64-256-64, m 32, 4 ranks, float32."""
    first, second = SplitMatmul(factors[0], (64,), (256,)), SplitMatmul(factors[1], (256,), (64,))
    nbytes = [4 * sum(pair) for pair in zip(closed_form(first, 32), closed_form(second, 32), strict=True)]
    assert tuple(nbytes) == expected
    bytes_sent = beside(
        4,
        lambda tape, x, v, w: network(tape, x, v, w, (first, second)),
        lambda x, v, w: torch.relu(x @ v) @ w,
        second.output_shards((8, 4)),
        [(normal(8, 4, 64), first.input_shards((8, 4)))],
        [(normal(64, 256, seed=1), first.weight), (normal(256, 64, seed=2), second.weight)],
    )
    assert bytes_sent == [2 * (expected[0] + expected[1])] * 4  # float64


async def network(tape, x, v, w, operators):
    hidden = await multiply(tape, operators[0], x, v)
    hidden = await tape.compute("relu", torch.relu, hidden, result=hidden.shards)
    return await multiply(tape, operators[1], hidden, w)


def test_a_stream_with_other_rows_comes_by_an_all_to_all():
    """The larger p0 over the smaller is c = 2: (c-1)/c of the local piece, there and back."""
    before, after = SplitMatmul((4, 1, 1), (8,), (8,)), SplitMatmul((2, 2, 1), (8,), (8,))
    forward = closed_form(after, 16)[0]
    bytes_sent = run(after, (4, 4), inputs=before.output_shards((4, 4)))
    assert bytes_sent == [8 * 2 * (forward + 1 / 2 * 16 * 8 / 4)] * 4


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 4), (4, 1)])
def test_a_multiplication_of_summa_sends_panels_of_both_operands_three_times(rows, columns):
    """3 [(c-1)/c · mk/r + (r-1)/r · kn/c] elements of a rank in a microbatch (SHARDING: r x c is (r, c, 1), ZeRO-3)."""
    m, k, n = 8 * 6, 16, 32
    operator = SplitMatmul((rows, columns, 1), (k,), (n,))
    weight = ShardedWeight.of(piece(1, sharded_weight(operator.weight), torch.float64), sharded_weight(operator.weight))
    x = piece(1, operator.input_shards((8, 6)), torch.float64, trained=False)
    stage_record = record(1, lambda tape: multiply(tape, operator, Value(x, operator.input_shards((8, 6))), weight))
    r, c = rows, columns
    each_way = (c - 1) / c * m * k / r + (r - 1) / r * k * n / c
    assert (stage_record.forward.nbytes + stage_record.backward.nbytes) / 8 == 3 * each_way
    assert stage_record.kept == 8 * (m * k + m * n) / (r * c), "the input as it arrives, and the product"


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_weight_half_of_a_sharded_weight_multiplies_and_scatters_its_gradient(ranks):
    """Each half is 2 m k n / p operations; the input half gathers (p-1)/p · kn elements, the other scatters them."""
    m, k, n = 8 * 6, 16, 32
    operator = SplitMatmul((ranks, 1, 1), (k,), (n,))
    weight = ShardedWeight.of(piece(0, sharded_weight(operator.weight), torch.float64), sharded_weight(operator.weight))
    x = Value(piece(0, operator.input_shards((8, 6)), torch.float64, trained=False), operator.input_shards((8, 6)))
    stage_record = record(0, lambda tape: multiply(tape, operator, x, weight), back=input_half)
    for half in (stage_record.backward, stage_record.weights):
        computed = [step.operations for step in half.steps if isinstance(step, ComputeStep)]
        assert sum(computed) == 2 * m * k * n / ranks
        assert half.nbytes == 8 * (ranks - 1) / ranks * k * n


STORED = {
    "rows alone": SplitMatmul((2, 1, 1), (12,), (8,)),
    "one panel": SplitMatmul((2, 2, 1), (11,), (8,)),
    "2 x 2": SplitMatmul((2, 2, 1), (12,), (8,)),
    "2 x 3, uneven panels": SplitMatmul((2, 3, 1), (24,), (7,)),
    "2 x 2 x 2": SplitMatmul((2, 2, 2), (16,), (7,)),
    "columns of heads": SplitMatmul((2, 2, 1), (12,), (3, 5, 2), cut=1),
    "from heads, uneven": SplitMatmul((2, 3, 1), (5, 4), (7,)),
    "contraction alone": SplitMatmul((1, 2, 2), (12,), (8,)),
}
"""Multiplications of weights that are sharded."""


@pytest.mark.parametrize("halves", [False, True], ids=["whole", "halves"])
@pytest.mark.parametrize("case", STORED)
def test_a_sharded_weight_gives_the_product_and_the_gradients_of_a_whole_one(case, halves):
    operator, lead = STORED[case], (4, 3)
    lies, k = sharded_weight(operator.weight), len(operator.inputs)
    x, w, y = normal(*lead, *operator.inputs), normal(*lies.lengths, seed=1), normal(*lead, *operator.outputs, seed=2)

    async def work(tape):
        piece = lies.local(w, tape.rank).requires_grad_()
        value = Value(operator.input_shards(lead).local(x, tape.rank), operator.input_shards(lead))
        result = await tape.run(multiply(tape, operator, value, ShardedWeight.of(piece, lies)))
        gradient = operator.output_shards(lead).local(y, tape.rank)
        await tape.run(tape.backward(result, gradient, input_half if halves else None))
        assert piece.grad is None or not halves, "the input half computes no gradient of a weight"
        await tape.run(tape.backward_weights())
        return result.array, value.gradient, piece.grad

    results, _ = on_ranks(operator.mesh.size, work)
    products, back, gradients = zip(*results, strict=True)
    close(together(operator.output_shards(lead), products), torch.tensordot(x, w, k), CLOSE)
    close(
        together(operator.input_shards(lead), back),
        torch.tensordot(y, w, (tuple(range(2, y.dim())), tuple(range(k, w.dim())))),
        CLOSE,
    )
    close(together(lies, gradients), torch.tensordot(x, y, ((0, 1), (0, 1))), CLOSE)


@pytest.mark.parametrize("factors", [(2, 1, 1), (2, 2, 1), (2, 3, 1), (2, 2, 2)], ids=str)
def test_a_sharded_matrix_embeds_and_is_the_head_of_one_process(factors):
    head, lead, v, c = SplitMatmul(factors, (12,), (11,)), (4, 3), 11, 12
    lies, w = sharded_weight(head.table), normal(v, c).requires_grad_()
    ids = torch.randint(v, lead, generator=torch.Generator().manual_seed(1))
    (torch.nn.functional.embedding(ids, w).square() @ w.t()).square().sum().backward()

    async def work(tape):
        piece = lies.local(w.detach(), tape.rank).requires_grad_()
        id_value = Value(ids_shards(head, lead).local(ids, tape.rank), ids_shards(head, lead), False)
        x = await tape.run(embed(tape, head, id_value, ShardedWeight.of(piece, lies)))
        x = await tape.compute("square", torch.square, x, result=x.shards)
        y = await tape.run(multiply(tape, head, x, ShardedWeight.of(piece, lies), transposed=True))
        await tape.run(tape.backward(y, 2 * y.array))
        return piece.grad

    close(together(lies, on_ranks(head.mesh.size, work)[0]), w.grad, CLOSE)


class Watched:
    """Carries pieces, and notes the most bytes of gathered arrays that are held at a time."""

    def __init__(self, end):
        self.network, self.rank, self.most = MeshGroups(end, 3), end.rank, 0
        self._gathered = []

    def start(self, path, array):
        return None

    async def carry(self, path, array):
        moved = await self.network.carry(path, array)
        if any(isinstance(move, AllGather) for move in path.steps):
            self._gathered.append(weakref.ref(moved))
        held = [array for each in self._gathered if (array := each()) is not None]
        self.most = max(self.most, sum(array.untyped_storage().nbytes() for array in held))
        return moved


@pytest.mark.parametrize(("rows", "columns", "panels"), [(2, 2, 2), (2, 4, 4), (3, 2, 3), (4, 1, 1)])
def test_summa_gathers_a_panel_of_each_operand_at_a_time(rows, columns, panels):
    """(mk/r + kn/c) / s elements of s panels, forward and back; the bytes sent are those of whole operands."""
    (b, t), k, n = (12, 2), 144, 24
    operator, lead = SplitMatmul((rows, columns, 1), (k,), (n,)), (b, t)
    lies, x, w = sharded_weight(operator.weight), normal(b, t, k), normal(k, n, seed=1)
    m, r, c = b * t, rows, columns

    async def work(end):
        network = Watched(end)
        tape = Tape(network, TimedExecutor({}, RealClock()))
        weight = ShardedWeight.of(lies.local(w, end.rank).requires_grad_(), lies)
        value = Value(operator.input_shards(lead).local(x, end.rank), operator.input_shards(lead))
        y = await tape.run(multiply(tape, operator, value, weight))
        forward = network.most
        await tape.run(tape.backward(y, y.array))
        return forward, network.most, end.traffic.bytes_sent

    async def everyone():
        return await asyncio.gather(*map(work, world(rows * columns)))

    gathered_bytes = 8 * ((m * k / r if c > 1 else 0) + k * n / c) / panels
    sent_bytes = 8 * 3 * ((c - 1) / c * m * k / r + (r - 1) / r * k * n / c)
    assert asyncio.run(everyone()) == [(gathered_bytes, gathered_bytes, sent_bytes)] * (rows * columns)
