"""Operators on all ranks of a mesh in one process, beside the same operators on whole tensors."""

import asyncio
from fractions import Fraction
from math import prod

import pytest
import torch

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import RealClock
from pipelined.sharding import MeshGroups, Shards
from pipelined.sharding.operators.tape import Tape
from pipelined.sharding.operators.verbs import Value
from transports.local import world

CLOSE = 1e-12


def triples(most, always):
    """All (p0, p1, p2) of at most so many ranks as parameters of a test; only products in `always` run every time."""
    factors = [
        (p0, p1, p2)
        for p0 in range(1, most + 1)
        for p1 in range(1, most // p0 + 1)
        for p2 in range(1, most // p0 // p1 + 1)
    ]
    return [
        pytest.param(triple, marks=[pytest.mark.full] if prod(triple) not in always else [], id=str(triple))
        for triple in factors
    ]


def closed_form(operator, rows):
    """What each rank sends in the forward, the backward and the gradients' sum of a product, where all sizes divide.

    Source: AutoDDL, section 4.2.2.
    """
    (p0, p1, p2), k, n = operator.factors, prod(operator.inputs), prod(operator.outputs)
    once = Fraction((p1 - 1) * rows * k + (p2 - 1) * rows * n, p0 * p1 * p2)
    return once, once, Fraction(2 * (p0 - 1) * k * n, p0 * p1 * p2)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


async def tapes(size, work):
    """What `work(tape)` returns on each rank, and the bytes that each rank sent; moves run over the local transport."""
    ends = world(size)
    rank_tapes = [Tape(MeshGroups(end, 3), TimedExecutor({}, RealClock())) for end in ends]
    results = await asyncio.wait_for(asyncio.gather(*map(work, rank_tapes)), 30)
    return results, [end.traffic.bytes_sent for end in ends]


def on_ranks(size, work):
    """`tapes` in an event loop of its own."""
    return asyncio.run(tapes(size, work))


def together(shards, pieces):
    """The whole tensor, from every rank's piece: partial sums are added, and what is broadcast is counted once."""
    whole = torch.zeros(shards.lengths, dtype=pieces[0].dtype)
    times = torch.zeros(shards.lengths, dtype=pieces[0].dtype)
    summed = set(shards.layout.partial)
    for rank, piece in enumerate(pieces):
        indices = [torch.cat([torch.arange(*each) for each in [(0, 0), *ranges]]) for ranges in shards.pieces(rank)]
        index = torch.meshgrid(*indices, indexing="ij") if indices else (...,)
        coordinates = shards.mesh.coordinates(rank)
        whole[index] += piece
        times[index] += not any(coordinates[axis] for axis in summed)
    return whole / times


def gradient_of(shards, replicated=()):
    """How the gradient of a value or parameter lies."""
    return Shards(shards.mesh, shards.lengths, shards.layout.cotangent(shards.mesh, replicated))


def beside(size, sharded, plain, result, inputs, parameters=(), replicated=(), share=CLOSE):
    """Compare an operator on ranks with the plain one: its value, and the gradients of inputs and parameters.

    Args:
        sharded: of a tape, the inputs' values and the parameters' pieces; gives the result's value.
        plain: the same of whole tensors.
        result: how the result lies.
        inputs, parameters: pairs of a whole tensor and how it lies.
        share: the largest difference, as a share of a tensor's largest element.
        replicated: the axes on which all ranks compute the same result.
    Returns: the bytes that each rank sent.
    """
    wholes = [whole.clone().requires_grad_(whole.is_floating_point()) for whole, _ in [*inputs, *parameters]]
    expected = plain(*wholes)
    cotangent = normal(*expected.shape, seed=99)
    expected.backward(cotangent)

    async def work(tape):
        values = [Value(shards.local(whole, tape.rank), shards, whole.is_floating_point()) for whole, shards in inputs]
        pieces = [shards.local(whole, tape.rank).requires_grad_() for whole, shards in parameters]
        output = await tape.run(sharded(tape, *values, *pieces))
        assert output.shards.pieces(tape.rank) == result.pieces(tape.rank)
        await tape.run(tape.backward(output, gradient_of(result, replicated).local(cotangent, tape.rank)))
        gradients = [value.gradient for value in values] + [piece.grad for piece in pieces]
        return output.array, gradients

    ranks, bytes_sent = on_ranks(size, work)
    close(together(result, [value for value, _ in ranks]), expected.detach(), share)
    for number, (whole, (_, shards)) in enumerate(zip(wholes, [*inputs, *parameters], strict=True)):
        if whole.grad is not None:
            pieces = [gradients[number] for _, gradients in ranks]
            for rank, piece in enumerate(pieces):  # a piece without elements may have none
                pieces[rank] = whole.new_zeros(shards.shape(rank)) if piece is None else piece
            close(together(gradient_of(shards), pieces), whole.grad, share)
    return bytes_sent


def close(value, expected, share):
    most = float(expected.abs().max()) if expected.numel() else 0.0
    assert float((value - expected).abs().max() if expected.numel() else 0.0) <= share * most
