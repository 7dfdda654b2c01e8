"""Half-width floats summed in float32: how near they come to float64, what they send, and what is refused."""

import asyncio
from collections import Counter

import numpy as np
import pytest
import torch

from collectives import Group, Mismatch, ProblemSize, all_reduce
from collectives.algorithms import ALL_REDUCE
from collectives.arrays import pieces
from tests.conformance.worlds import local_world
from tests.unit.collectives.owned import owned
from transports import PeerAborted

EVERY = [name for name in ALL_REDUCE.names if name != "native"]  # needs a transport that has one: tests/mpi
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
PIECE = 400  # bytes: a block of 100 elements


def reduced(arrays, algorithm, accumulate="float32", op="sum", patience=60.0):
    """Reduce one array a rank, in blocks of 100; return the ranks' ends and what each call raised."""
    ends = local_world(len(arrays), shared_memory=algorithm == "shared")

    async def main():
        groups = [Group(end, range(len(ends)), 3, piece=PIECE, patience=patience) for end in ends]
        sums = [accumulate] * len(ends) if isinstance(accumulate, str | None) else accumulate
        calls = (all_reduce(*each[:2], op, algorithm, each[2]) for each in zip(groups, arrays, sums, strict=True))
        return await asyncio.wait_for(asyncio.gather(*map(owned, ends, calls), return_exceptions=True), 30)

    return ends, asyncio.run(main())


def normal(size, length, dtype):
    generators = map(np.random.default_rng, range(size))
    return [torch.from_numpy(generator.standard_normal(length)).to(dtype) for generator in generators]


@pytest.mark.parametrize("dtype", HALVES.values(), ids=HALVES)
@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("algorithm", EVERY)
def test_it_is_rounded_but_once(algorithm, op, dtype):
    """Within half a unit in the last place of the exact result, beside float32's own errors; else it is not."""
    size, beyond = 8, {}
    for accumulate in ("float32", None):
        arrays = normal(size, 1001, dtype)
        rows = torch.stack(arrays).double()
        exact, whole = getattr(rows, op)(0), rows.abs().sum(0)
        bound = exact.abs() * torch.finfo(dtype).eps / 2 + whole * size * 2.0**-24 + torch.finfo(dtype).tiny
        assert reduced(arrays, algorithm, accumulate, op)[1] == [None] * size
        assert all(array.equal(arrays[0]) for array in arrays)
        beyond[accumulate] = int(((arrays[0].double() - exact).abs() > bound).sum())
    assert beyond["float32"] == 0
    assert beyond[None] > 100


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("length", [0, 1, 100, 1001])
@pytest.mark.parametrize("algorithm", ALL_REDUCE.with_closed_forms)
def test_every_block_sends_the_closed_form_of_float32(algorithm, length, size):
    ends, _ = reduced(normal(size, length, torch.bfloat16), algorithm)
    for rank, end in enumerate(ends):
        form = Counter()
        for low, high in pieces(0, length, 100):
            form.update(ALL_REDUCE.forms(algorithm).bytes_to(ProblemSize.on_one_node(size, 4 * (high - low), 4), rank))
        assert end.traffic.bytes_to == form


@pytest.mark.parametrize("algorithm", EVERY)
def test_numpy_s_float16_is_widened_too(algorithm):
    arrays = [np.full(250, 2048.0 if rank == 0 else 0.75, np.float16) for rank in range(5)]
    assert reduced(arrays, algorithm)[1] == [None] * 5
    assert all((array == 2052).all() for array in arrays)  # 2051 lies between 2050 and 2052, and goes to the even


def test_float32_is_summed_as_ever():
    arrays = [np.ones(500, np.float32) for _ in range(3)]
    ends, _ = reduced(arrays, "ring")
    assert [end.traffic.bytes_to for end in ends] == [
        ALL_REDUCE.forms("ring").bytes_to(ProblemSize.on_one_node(3, 2000, 4), rank) for rank in range(3)
    ]


@pytest.mark.parametrize(
    ("array", "accumulate", "says"),
    [
        (np.ones(4), "float32", r"no float32 accumulation of float64 \(it is for bfloat16, float16, float32\); leave"),
        (np.ones(4, np.int32), "float32", "no float32 accumulation of int32"),
        (np.ones(4, np.float16), "float64", "unknown accumulation 'float64'; known: float32"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(array, accumulate, says):
    ends, errors = reduced([array, array.copy()], "ring", accumulate)
    for error in errors:
        with pytest.raises(ValueError, match=says):
            raise error
    assert not any(end.traffic.messages_sent for end in ends)


@pytest.mark.parametrize("algorithm", EVERY)
def test_all_ranks_end_where_one_accumulates_differently(algorithm):
    arrays = [np.ones(250, np.float16) for _ in range(3)]
    for error in reduced(arrays, algorithm, ["float32", None, "float32"], patience=0.02)[1]:
        assert isinstance(error, Mismatch | PeerAborted)
        assert "sum in float32 of 25" in str(error) and "sum of 250 float16" in str(error)
