"""A record has the steps, bytes and memory of the stage that runs, and its price is the time on slow links."""

import asyncio

import pytest
import torch

from benchmarks.harness.timed_executor import TimedExecutor
from collectives import Links
from pipelined.aio.clock import RealClock
from pipelined.sharding import MeshGroups
from pipelined.sharding.operators.matmul import SplitMatmul, multiply
from pipelined.sharding.operators.stage_record import ComputeStep, MoveStep, piece, record
from pipelined.sharding.operators.stream import layer_norm
from pipelined.sharding.operators.tape import Tape
from pipelined.sharding.operators.verbs import Value
from tests.unit.pipelined.sharding.operators.ranks import normal, on_ranks
from transports import open_local

LEAD, C, F = (8, 16), 64, 256
FIRST, SECOND = SplitMatmul((2, 2, 2), (C,), (F,)), SplitMatmul((2, 1, 4), (F,), (C,))


async def network(tape, x, weight, bias, v, w):
    x = await layer_norm(tape, x, weight, bias)
    x = await multiply(tape, FIRST, x, v)
    return await multiply(tape, SECOND, x, w)


def parameters():
    token = FIRST.input_shards(LEAD).layout.cuts[2]
    ln = type(FIRST.weight)(FIRST.mesh, (C,), type(FIRST.weight.layout).of({0: token}))
    return [ln, ln, FIRST.weight, SECOND.weight]


def recorded(rank):
    async def stage(tape):
        x = Value(piece(rank, FIRST.input_shards(LEAD), torch.float64, False), FIRST.input_shards(LEAD))
        return await network(tape, x, *(piece(rank, shards, torch.float64) for shards in parameters()))

    return record(rank, stage)


async def trained(tape, after=lambda: None):
    x = Value(FIRST.input_shards(LEAD).local(normal(*LEAD, C), tape.rank), FIRST.input_shards(LEAD))
    pieces = [shards.local(normal(*shards.lengths), tape.rank).requires_grad_() for shards in parameters()]
    y = await tape.run(network(tape, x, *pieces))
    forward = after()
    await tape.run(tape.backward(y, y.array))
    return forward


def test_the_bytes_of_both_directions_are_those_sent():
    forward_bytes, sent_bytes = on_ranks(
        8, lambda tape: trained(tape, lambda: tape.network.transport.traffic.bytes_sent)
    )
    for rank in range(8):
        told = recorded(rank)
        assert (told.forward.nbytes, told.forward.nbytes + told.backward.nbytes) == (
            forward_bytes[rank],
            sent_bytes[rank],
        )


def test_operations_are_two_for_each_product_and_twice_that_in_the_backward():
    told, m = recorded(0), LEAD[0] * LEAD[1]
    products = 2 * (m * C * F + m * F * C) // 8
    assert sum(step.operations for step in told.forward.steps if isinstance(step, ComputeStep)) == products
    assert sum(step.operations for step in told.backward.steps if isinstance(step, ComputeStep)) == 2 * products


def test_record_counts_the_bytes_that_the_tape_keeps():
    """Counted over the same stage on real tensors, by the storages that autograd saves."""
    saved, kept_bytes = {}, {}

    def note(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    async def work(tape):
        def count():
            tensors = {each.array.untyped_storage().data_ptr(): each.array for each in tape.values()}
            parameter_storages = {each.untyped_storage().data_ptr() for each in tape.parameters()}
            storages = saved | {at: each.untyped_storage().nbytes() for at, each in tensors.items()}
            kept_bytes[tape.rank] = sum(size for at, size in storages.items() if at not in parameter_storages)

        await trained(tape, count)

    alone = SplitMatmul((1, 1, 1), (C,), (F,))
    assert alone.mesh.size == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "FIRST", alone)
        patch.setitem(globals(), "SECOND", SplitMatmul((1, 1, 1), (F,), (C,)))
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            on_ranks(1, work)
        assert recorded(0).kept == kept_bytes[0]


@pytest.mark.virtual
async def test_on_slow_links_it_takes_as_long_as_its_price():
    """1 ms and 1 Gbit/s; computations take no time on the virtual clock, so their speed is set very high."""
    ends = open_local("local://?delay=1ms&rate=100mbit", 8)
    loop = asyncio.get_running_loop()
    start = loop.time()
    tapes = [Tape(MeshGroups(end, 3), TimedExecutor({}, RealClock())) for end in ends]
    await asyncio.gather(*map(trained, tapes))
    took = loop.time() - start
    told = recorded(0)
    links = Links(1e-3, 8 / 100e6, 0.0)
    expected = told.forward.seconds(links, 1e30) + told.backward.seconds(links, 1e30)
    assert took == pytest.approx(expected, rel=0.005)
    assert any(isinstance(step, MoveStep) for step in told.forward.steps)
