"""Ranks that call one collective differently: every rank ends, with an error that names two unequal calls.

As in a job, the owner of each rank's end aborts it when its call fails; the call itself tells no other rank.
"""

import asyncio
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from collectives import BrokenGroup, Group, Mismatch, Signature, all_reduce, barrier, broadcast
from tests.conformance.worlds import local_world
from tests.unit.collectives.owned import owned
from transports import PeerAborted

PATIENCE = 0.02
ALGORITHMS = ("auto", "multi_ring", "rabenseifner", "recursive_doubling", "ring")


@dataclass(frozen=True)
class Asked:
    """What one rank asks for."""

    algorithm: str = "ring"
    op: str = "sum"
    length: int = 100
    dtype: str = "float32"


async def error_of(end, call):
    """What the call ends with; the owner of this rank's end aborts it then."""
    with pytest.raises((Mismatch, PeerAborted)) as caught:
        await owned(end, call)
    return caught.value


def ended(calls):
    """What each rank's call ended with, given what each rank asks for."""

    async def rank(end, call):
        array = np.arange(call.length).astype(call.dtype)
        group = Group(end, range(len(calls)), 0, patience=PATIENCE)
        error = await error_of(end, all_reduce(group, array, call.op, call.algorithm))
        with pytest.raises(BrokenGroup):
            await barrier(group)
        return error

    async def main():
        return await asyncio.wait_for(asyncio.gather(*map(rank, local_world(len(calls)), calls)), 20)

    return asyncio.run(main())


asked = st.builds(
    Asked,
    algorithm=st.sampled_from(ALGORITHMS),
    op=st.sampled_from(["sum", "max"]),
    length=st.sampled_from([0, 1, 3, 4, 100, 10_000]),
    dtype=st.sampled_from(["float32", "int32", "float64"]),
)


@settings(max_examples=15, deadline=None)
@given(size=st.integers(2, 7), most=asked, other=asked, data=st.data())
def test_every_rank_ends_and_names_the_one_that_differs(size, most, other, data):
    assume(most != other)
    odd = data.draw(st.integers(0, size - 1))
    errors = ended([other if rank == odd else most for rank in range(size)])
    for error in errors:
        assert all(f"{call.op} of {call.length} {call.dtype}" in str(error) for call in (most, other))
        assert all(f"by {call.algorithm}" in str(error) for call in (most, other))
        assert f"rank {odd}:" in str(error)


@settings(max_examples=8, deadline=None)
@given(calls=st.lists(asked, min_size=3, max_size=6))
def test_any_number_of_ranks_may_differ(calls):
    assume(len(set(calls)) > 1)
    assert Mismatch in {type(error) for error in ended(calls)} <= {Mismatch, PeerAborted}


@pytest.mark.parametrize("size", [2, 3, 5])
def test_other_collectives_than_the_others_are_named(size):
    async def main():
        ends = local_world(size)
        groups = [Group(end, range(size), 0, patience=PATIENCE) for end in ends]
        calls = [broadcast(groups[0], np.ones(9), 1), *map(barrier, groups[1:])]
        return await asyncio.wait_for(asyncio.gather(*map(error_of, ends, calls)), 20)

    for error in asyncio.run(main()):
        assert "broadcast from 1 of 9 float64" in str(error) and ": barrier" in str(error)


async def test_a_late_rank_learns_of_an_unequal_call_from_bytes_that_waited_for_it():
    ends = local_world(3)
    groups = [Group(end, range(3), 0) for end in ends]
    early = [asyncio.ensure_future(error_of(*pair)) for pair in zip(ends, sums_of(5, groups[:2]), strict=False)]
    await asyncio.wait(early, timeout=PATIENCE)
    late = await error_of(ends[2], all_reduce(groups[2], np.ones(6), "sum", "ring"))
    assert all(
        "sum of 6" in str(error) and "sum of 5" in str(error)
        for error in [late, *await asyncio.wait_for(asyncio.gather(*early), 5)]
    )


def sums_of(length, groups):
    return [all_reduce(group, np.ones(length), "sum", "ring") for group in groups]


async def test_waiting_long_for_a_rank_that_means_the_same_is_no_failure():
    groups = [Group(end, range(4), 0, patience=PATIENCE) for end in local_world(4)]
    arrays = [np.ones(5) for _ in groups]
    early = [asyncio.ensure_future(all_reduce(*pair)) for pair in zip(groups[1:], arrays[1:], strict=True)]
    await asyncio.wait(early, timeout=4 * PATIENCE)
    await all_reduce(groups[0], arrays[0])
    await asyncio.wait_for(asyncio.gather(*early), 20)
    for _ in range(3):
        await asyncio.gather(*map(barrier, groups))
    new_groups = [Group(end.transport, range(4), 0, patience=PATIENCE) for end in groups]
    await asyncio.gather(*map(barrier, new_groups))
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert all((array == 4).all() for array in arrays)


@pytest.mark.parametrize("late", [0, 1])
async def test_a_rank_that_has_yet_to_choose_an_algorithm_means_the_same(late):
    """The other one has chosen, and both have looked round, before it does."""

    ends, found = local_world(2, shared_memory=True), asyncio.Event()
    open_shared = ends[late].open_shared

    async def open_late(*group):
        memory = await open_shared(*group)
        await found.wait()
        return memory

    ends[late].open_shared = open_late
    arrays = [np.ones(5) for _ in ends]
    groups = [Group(end, range(2), 0, patience=PATIENCE) for end in ends]
    sums = [asyncio.ensure_future(all_reduce(*pair)) for pair in zip(groups, arrays, strict=True)]
    await asyncio.wait(sums, timeout=4 * PATIENCE)
    found.set()
    await asyncio.wait_for(asyncio.gather(*sums), 20)
    assert all((array == 2).all() for array in arrays)


async def test_a_report_of_an_earlier_group_is_ignored():
    """Rank 1 is still in the first group's call, and has said so, while rank 0 waits in the second group's."""

    ends = local_world(2)
    first = [Group(end, range(2), 0, patience=PATIENCE) for end in ends]
    slow = asyncio.ensure_future(all_reduce(first[1], np.ones(5), "sum", "ring"))
    await asyncio.wait([slow], timeout=4 * PATIENCE)
    second = [Group(end, range(2), 0, patience=PATIENCE) for end in ends]
    waiting = asyncio.ensure_future(waits(second[0]))
    await asyncio.wait([waiting], timeout=4 * PATIENCE)
    assert not waiting.done()
    for task in (slow, waiting):
        task.cancel()
    await asyncio.wait([slow, waiting])


def test_the_text_of_a_signature_has_all_of_its_parts():
    plain = Signature("all_reduce", "sum", 8, "float32", "auto")
    assert str(plain) == "all_reduce by auto: sum of 8 float32"
    assert str(replace(plain, chosen="ring", memory_label="array 0 at 64")) == (
        "all_reduce in array 0 at 64 by auto, ring: sum of 8 float32"
    )
    assert str(Signature("barrier")) == "barrier"


async def waits(group):
    async with group.call(Signature("something else")):
        await asyncio.get_running_loop().create_future()
