"""A group numbers its ranks, exchanges both ways at once, keeps its scratch bounded, and breaks as a whole."""

import asyncio

import numpy as np
import pytest

from collectives import BrokenGroup, Group, Signature, all_reduce, barrier
from collectives.arrays import Vector
from collectives.group.communicator import INLINE_BYTES
from tests.conformance.worlds import kill, local_world
from transports import Closed, TransportError
from transports.local import world


def test_ranks_are_numbered_by_their_place_in_the_group():
    ends = world(5)
    assert [Group(ends[rank], (4, 1, 2), 0).rank for rank in (4, 1, 2)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("ranks", "says"), [((1, 2), "rank 0 is not in"), ((0, 1, 1), "named twice"), ((0, 3), "no such"), ((), "not in")]
)
def test_an_impossible_group_is_refused(ranks, says):
    with pytest.raises(ValueError, match=says):
        Group(world(3)[0], ranks, 0)
    with pytest.raises(ValueError, match="channel: 16384, channels: 16384"):
        Group(world(3)[0], (0,), 16384)


async def exchanged(group, to, outgoing, source, incoming):
    async with group.call(Signature("exchange")):
        await group.exchange(to, memoryview(outgoing), source, memoryview(incoming))


async def test_exchange_goes_both_ways_at_once():
    ends, buffers = world(2), [bytearray(3), bytearray(3)]

    groups = [Group(end, (0, 1), 7) for end in ends]
    sides = zip(groups, (b"abc", b"xyz"), buffers, strict=True)
    await asyncio.gather(*(exchanged(group, 1 - group.rank, out, 1 - group.rank, into) for group, out, into in sides))
    assert buffers == [b"xyz", b"abc"]


async def test_messages_outside_a_call_are_refused():
    group = Group(world(2)[0], (0, 1), 7)
    with pytest.raises(RuntimeError, match=r"inside `group\.call`"):
        await group.send(1, memoryview(b"abc"))


async def test_a_signature_that_another_rank_has_seen_is_not_refined():
    async def refined_late(group):
        async with group.call(Signature("first")) as call:
            call.refine(chosen="exactly")
            await group.exchange_fingerprints(1 - group.rank, 1 - group.rank)
            with pytest.raises(RuntimeError, match=r"sent already \(first, exactly\)"):
                call.refine(chosen="second")

    await asyncio.gather(*(refined_late(Group(end, (0, 1), 7)) for end in world(2)))


async def test_an_exchange_ends_with_the_error_of_either_half():
    ends = world(3)
    group = Group(ends[0], (0, 1, 2), 0)
    call = asyncio.ensure_future(exchanged(group, 1, b"abc", 2, bytearray(3)))
    await asyncio.sleep(0)
    kill(ends[1])
    with pytest.raises(TransportError, match="lost rank 1"):
        await asyncio.wait_for(call, 5)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("nbytes", [0, 3, INLINE_BYTES + 1])
async def test_fingerprints_count_as_no_payload(nbytes):
    ends = world(2)

    async def call(group):
        async with group.call(Signature("exchange")):
            other, received = 1 - group.rank, bytearray(nbytes)
            await group.exchange(other, memoryview(bytes(nbytes)), other, memoryview(received))
            await group.exchange_fingerprints(other, other)

    await asyncio.gather(*(call(Group(end, (0, 1), 7)) for end in ends))
    for end in ends:
        assert (end.traffic.messages_sent, end.traffic.bytes_sent) == (nbytes > 0, nbytes)
        assert (end.traffic.messages_received, end.traffic.bytes_received) == (nbytes > 0, nbytes)
        assert end.traffic.bytes_to == ({1 - end.rank: nbytes} if nbytes else {})


async def test_empty_messages_are_not_sent():
    group = Group(world(2)[0], (0, 1), 0)
    await exchanged(group, 1, b"", 1, bytearray())


def test_scratch_is_made_once_and_bounded():
    group, vector = Group(world(1)[0], (0,), 0, piece=1 << 19), Vector.of(np.empty(1 << 20, "float32"))
    first = group.workspace.scratch(vector, len(vector))
    again = group.workspace.scratch(Vector.of(np.empty(9, "int64")), 9)
    assert first.nbytes == 1 << 19 and again.nbytes == 72 and again.elements.dtype == "int64"
    assert np.shares_memory(first.elements, again.elements)
    assert not np.shares_memory(first.elements, group.workspace.scratch(vector, 9, lane=1).elements)


async def test_a_failure_breaks_the_group_and_is_named():
    ends = world(2)
    group = Group(ends[0], (0, 1), 4)
    await ends[0].close()
    with pytest.raises(Closed):
        await barrier(group)
    with pytest.raises(BrokenGroup, match=r"ranks=\(0, 1\), channel=4.*Closed"):
        await barrier(group)


@pytest.mark.parametrize("algorithm", ["shared", "native"])
async def test_an_algorithm_that_the_transport_does_not_offer_leaves_the_group_usable(algorithm):
    """The refusal once broke the group, though `all_reduce` promises that it is unchanged."""
    groups, arrays = [Group(end, (0, 1), 0) for end in world(2)], [np.ones(3), np.ones(3)]
    refused = await asyncio.gather(
        *(all_reduce(group, np.ones(3), "sum", algorithm) for group in groups), return_exceptions=True
    )
    assert all(isinstance(error, ValueError) and "choose another algorithm" in str(error) for error in refused)
    await asyncio.wait_for(asyncio.gather(*map(all_reduce, groups, arrays)), 5)
    assert all((array == 2.0).all() for array in arrays)


async def test_a_call_cancelled_before_its_turn_breaks_the_group():
    """The other ranks will run it all the same, and must not pair it with this rank's next call."""

    here, there = (Group(end, (0, 1), 0) for end in world(2))
    calls = [asyncio.ensure_future(all_reduce(here, np.ones(3))) for _ in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    await all_reduce(there, np.ones(3))
    await calls[0]
    with pytest.raises(BrokenGroup, match="CancelledError"):
        await asyncio.wait_for(calls[2], 5)


def test_a_part_of_a_group_has_its_own_nodes_and_no_memory_or_prices_of_the_whole():
    group = Group(local_world(4, nodes=(0, 0, 2, 2))[2], range(4), 0)
    assert group.nodes == (0, 0, 2, 2)
    part = group.subgroup([2, 3])
    assert (part.ranks, part.rank, part.nodes) == ((2, 3), 0, (0, 0))
    assert not any(hasattr(part, name) for name in ("shared", "native", "measured", "call"))
