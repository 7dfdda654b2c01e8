"""Lists of all-to-all that do not fit are refused, and so are sizes that differ between two ranks."""

import asyncio

import numpy as np
import pytest

from collectives import BrokenGroup, Group, Mismatch, all_to_all, allocate
from tests.conformance.worlds import local_world, tcp_world
from transports.local import world


@pytest.mark.parametrize(
    ("outgoing", "incoming", "says"),
    [([1], [1, 1], "outgoing: 1, incoming: 2, ranks: 2"), ([1, 1], [2, 1], r"for itself.*outgoing: 8, incoming: 16")],
)
def test_lists_that_do_not_fit_are_refused(outgoing, incoming, says):
    with pytest.raises(ValueError, match=says):
        group = Group(world(2)[0], (0, 1), 0)
        asyncio.run(all_to_all(group, [np.ones(n) for n in outgoing], [np.ones(n) for n in incoming]))


@pytest.mark.parametrize(("sent", "expected"), [(1, 0), (0, 1), (1, 2), (20_000, 0), (0, 20_000), (20_000, 30_000)])
async def test_sizes_that_differ_between_two_ranks_end_the_call_of_the_receiver(sent, expected):
    """A sent array for which the receiver expected none once stayed on the channel, and the next call received it."""
    ends = await tcp_world(2)
    here, there = (Group(end, (0, 1), 0) for end in ends)
    none, incoming = np.empty(0, "float32"), np.zeros(expected, "float32")
    sender = asyncio.ensure_future(all_to_all(here, [none, np.ones(sent, "float32")], [none, none]))
    how = "all_to_all by auto, pairwise"
    both = rf"rank 1: {how} of {4 * expected} bytes; rank 0: {how} of {4 * sent} bytes"
    with pytest.raises(Mismatch, match=both):
        await asyncio.wait_for(all_to_all(there, [none, none], [incoming, none]), 5)
    with pytest.raises(BrokenGroup):
        await all_to_all(there, [none, none], [np.zeros(sent, "float32"), none])
    assert not incoming.any()
    await ends[1].abort("as its owner does")
    await asyncio.wait([sender])
    sender.cancelled() or sender.exception()
    await ends[0].close()


@pytest.mark.parametrize("lengths", [(0, 0), (70_000, 3), (300_000, 300_001), (1 << 20, 0)])
async def test_long_arrays_pass_through_windows_in_chunks_of_which_ranks_send_unequally_many(lengths):
    groups = [Group(end, range(3), 0, window=1 << 18) for end in local_world(3, shared_memory=True)]
    outgoing = [[np.arange(lengths[(i + j) % 2]) % 251 + i + 2 * j for j in range(3)] for i in range(3)]
    for _ in range(2):
        incoming = [[np.empty_like(outgoing[i][j]) for i in range(3)] for j in range(3)]
        calls = (all_to_all(group, outgoing[group.rank], incoming[group.rank]) for group in groups)
        await asyncio.wait_for(asyncio.gather(*calls), 30)
        assert all((incoming[j][i] == outgoing[i][j]).all() for i in range(3) for j in range(3))


async def test_the_receiver_reports_unequal_sizes_in_shared_memory():
    here, there = (Group(end, (0, 1), 0) for end in local_world(2, shared_memory=True))
    none = np.empty(0)
    sender = asyncio.ensure_future(all_to_all(here, [none, np.ones(3)], [none, none]))
    with pytest.raises(Mismatch, match="shared of 16 bytes; rank 0: all_to_all by auto, shared of 24 bytes"):
        await asyncio.wait_for(all_to_all(there, [none, none], [np.ones(2), none]), 5)
    sender.cancel()
    await asyncio.wait([sender])


@pytest.mark.parametrize("size", [2, 4])
async def test_a_mebibyte_passes_through_windows_at_one_barrier(size):
    """Each slot's header once left 16 bytes for a second chunk, and a second barrier."""
    groups = [Group(end, range(size), 0) for end in local_world(size, shared_memory=True)]
    outgoing = [np.full((size, (1 << 20) // size), number, "uint8") for number in range(size)]
    incoming = [np.empty_like(each) for each in outgoing]
    calls = (all_to_all(group, list(outgoing[group.rank]), list(incoming[group.rank])) for group in groups)
    await asyncio.wait_for(asyncio.gather(*calls), 30)
    assert all((rows == np.arange(size)[:, None]).all() for rows in incoming)
    assert [group.shared.memory.epoch for group in groups] == [1] * size


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(("who", "barriers"), [(range(4), 2), ([1], 15), ([], 14)])
async def test_long_arrays_that_were_allocated_are_read_where_they_lie_and_others_not(who, barriers):
    """Some ranks send from memory of `allocate`; a part for this rank itself, and short ones, are never read so.

    The slots of 4 ranks have 2^18 bytes, so 3.6 million bytes are 14 chunks; what is read in place adds a barrier.
    """
    groups = [Group(end, range(4), 0) for end in local_world(4, shared_memory=True)]

    async def work(group):
        mine = await allocate(group, 4 * 900_000, "float32")
        if group.rank not in who:
            mine = np.empty_like(mine)
        rows = list(mine.reshape(4, -1))
        rows[3] = rows[3][:5]
        before = group.shared.memory.epoch
        for turn in range(2):  # what is sent is overwritten as soon as the call has returned
            for to, row in enumerate(rows):
                row[:] = 100 * turn + 10 * group.rank + to
            incoming = [np.empty(5 if group.rank == 3 else 900_000, "float32") for _ in range(4)]
            await all_to_all(group, rows, incoming)
            assert [set(each.tolist()) for each in incoming] == [{100.0 * turn + 10 * i + group.rank} for i in range(4)]
        return group.shared.memory.epoch - before

    epochs = await asyncio.wait_for(asyncio.gather(*map(work, groups)), 30)
    assert len(set(epochs)) == 1 and epochs[0] == 2 * barriers, epochs


async def test_a_long_array_that_a_rank_keeps_for_itself_adds_no_barrier_wherever_it_lies():
    """Once a rank that sent only itself a long allocated array waited at a barrier that the others did not reach."""
    groups = [Group(end, range(2), 0) for end in local_world(2, shared_memory=True)]

    async def work(group):
        mine = await allocate(group, 900_000, "float32")
        mine[:] = group.rank
        before = group.shared.memory.epoch
        lengths = [900_000 if rank == group.rank == 0 else 5 for rank in range(2)]
        incoming = [np.empty(length, "float32") for length in lengths]
        await all_to_all(group, [mine[:length] for length in lengths], incoming)
        assert [set(each.tolist()) for each in incoming] == [{0.0}, {1.0}]
        return group.shared.memory.epoch - before

    assert await asyncio.wait_for(asyncio.gather(*map(work, groups)), 10) == [1, 1]
