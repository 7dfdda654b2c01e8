"""Memory shared by the ranks of a node, between real processes."""

import asyncio
import gc
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4py import MPI

import transports.mpi.shared
from collectives import BrokenGroup, Group, Mismatch, all_reduce, allocate, start_publishing
from pipelined.sharding import Mesh, MeshGroups, Shards, path_between
from tests.mpi.every_rank import SECONDS, on_every_rank
from transports import PeerAborted, new_event_loop, open_transport
from transports.shm.windows import TOTAL_STORE_ORDER

WORLD = MPI.COMM_WORLD
EVERY_RANK = range(WORLD.size)

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.skipif(not TOTAL_STORE_ORDER, reason="this processor does not keep a rank's writes in order"),
]


def test_nothing_is_sent_by_the_second_call_and_bits_are_those_of_the_order_of_ranks():
    async def work(transport):
        group = Group(transport, EVERY_RANK, 1, patience=SECONDS)  # else a rank that waits long reports its call
        rows = [np.random.default_rng(rank).standard_normal(700_001).astype("float32") for rank in EVERY_RANK]
        exact = rows[0].copy()
        for row in rows[1:]:
            exact += row
        await all_reduce(group, np.ones(1), "sum", "auto")
        before = transport.traffic.messages_sent
        await all_reduce(group, rows[WORLD.rank], "sum", "auto")
        assert rows[WORLD.rank].tobytes() == exact.tobytes()
        assert transport.traffic.messages_sent == before

    on_every_rank(work)


@pytest.mark.parametrize("length", [70_001, 1_000_003])
def test_what_was_allocated_is_summed_where_it_is_while_the_loop_runs(length):
    async def work(transport):
        group = Group(transport, EVERY_RANK, 1, patience=SECONDS)
        rows = [np.random.default_rng(rank).standard_normal(length).astype("float32") for rank in EVERY_RANK]
        exact = rows[0].copy()
        for row in rows[1:]:
            exact += row
        array = await allocate(group, length)
        before = transport.traffic.messages_sent
        for _ in range(3):
            array[:] = rows[WORLD.rank]
            await all_reduce(group, array)
            assert array.tobytes() == exact.tobytes()
        assert transport.traffic.messages_sent == before

    on_every_rank(work)


def test_ranks_that_pass_different_parts_of_an_allocated_array_get_a_mismatch():
    async def work(transport):
        group, last = Group(transport, EVERY_RANK, 1, patience=SECONDS), WORLD.size - 1
        array = await allocate(group, 200_001)
        with pytest.raises(Mismatch, match="array 0 at 4"):
            await all_reduce(group, array[1:] if WORLD.rank == last else array[:-1])

    on_every_rank(work)


def shared_memory():
    """The descriptors and mappings of this process that are of memory shared by the runtime."""
    folder = "/proc/self/fd"
    files = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder) if os.path.lexists(f"{folder}/{name}")]
    maps = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in [*files, *maps] if "memfd:pipelined" in line]


def test_no_window_mapping_or_descriptor_outlives_a_closed_transport_and_its_groups():
    async def work(transport):
        group = Group(transport, EVERY_RANK, 1, patience=SECONDS)
        array = await allocate(group, 200_001)
        await all_reduce(group, array)
        await all_reduce(group, np.ones(7))
        sending = asyncio.ensure_future(transport.send((WORLD.rank + 1) % WORLD.size, ("large",), np.ones(1 << 16)))
        frame = await transport.receive((WORLD.rank - 1) % WORLD.size, ("large",))
        await sending
        assert shared_memory()
        assert frame.blocks[0].numpy().sum() == 1 << 16

    gc.collect()  # of what failed tests before this one keep
    assert not shared_memory()
    on_every_rank(work)
    assert not shared_memory()


def test_where_one_rank_has_no_memory_to_lend_all_go_without(monkeypatch):
    def refuses(nbytes):
        raise OSError("none left")

    if WORLD.rank == WORLD.size - 1:
        monkeypatch.setattr(transports.mpi.shared, "MemoryFile", refuses)

    async def work(transport):
        group, array = Group(transport, EVERY_RANK, 1), np.full(5000, WORLD.rank + 1.0)
        assert await group.shared.open() is None
        await all_reduce(group, array, "sum", "auto")
        assert (array == WORLD.size * (WORLD.size + 1) / 2).all()

    on_every_rank(work)


def test_a_rank_that_waits_for_a_late_one_lets_the_loop_run():
    async def work(transport):
        group, array, key = Group(transport, EVERY_RANK, 1), np.ones(1000), ("begin",)
        await all_reduce(group, np.ones(1), "sum", "shared")
        last = WORLD.size - 1
        if WORLD.rank == last:  # it begins when the others say so, out of the loop that their call must leave to run
            for rank in range(last):
                await transport.receive(rank, key)
            await all_reduce(group, array, "sum", "shared")
        else:
            call = asyncio.ensure_future(all_reduce(group, array, "sum", "shared"))
            for _ in range(1000):
                await asyncio.sleep(0)
            assert not call.done()
            await transport.send(last, key)
            await call
        assert (array == WORLD.size).all()

    on_every_rank(work)


async def published_in_a_thread(group):
    """Begin to publish in another thread than the loop's, where rank 0 never does."""
    begun = await asyncio.to_thread(start_publishing, group, np.ones(100), [(100,)] * WORLD.size)
    assert begun.arrays is None
    await begun.finish()


@pytest.mark.parametrize("in_a_thread", [False, True], ids=["on the loop", "in a thread"])
def test_a_rank_that_waits_for_one_that_fails_raises(in_a_thread):
    async def main():
        transport = await open_transport("mpi://")
        group = Group(transport, EVERY_RANK, 1)
        await all_reduce(group, np.ones(1), "sum", "shared")
        if WORLD.rank == 0:
            await transport.abort("it had enough")
        else:
            call = published_in_a_thread(group) if in_a_thread else all_reduce(group, np.ones(100), "sum", "shared")
            with pytest.raises(PeerAborted, match="it had enough"):
                await asyncio.wait_for(call, 30)
            with pytest.raises(BrokenGroup):
                start_publishing(group, np.ones(100), [(100,)] * WORLD.size)
            await transport.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
    WORLD.Barrier()


@pytest.mark.parametrize("late_s", [0.0, 0.02])
def test_a_move_begun_in_a_thread_ends_there_or_on_the_loop_where_a_rank_is_late(late_s):
    """Sums, gathers and an exchange between real processes; every third is begun late by one rank."""

    async def work(transport):
        groups, mesh = MeshGroups(transport, 1), Mesh(f"a={WORLD.size}")
        whole = np.arange(6.0 * WORLD.size).reshape(2 * WORLD.size, 3)
        layouts = "S0:a", "S1:a", "B", "S0:a"
        with ThreadPoolExecutor(1) as pool:
            for turn in range(30):
                for source, target in pairwise(Shards(mesh, whole.shape, layout) for layout in layouts):
                    way, mine = path_between(source, target), torch.from_numpy(source.local(whole, WORLD.rank))
                    if late_s and turn % 3 == 0 and WORLD.rank == turn % WORLD.size:
                        await asyncio.sleep(late_s)
                    started = await asyncio.get_running_loop().run_in_executor(pool, groups.start, way, mine)
                    if started is None:
                        moved = await groups.carry(way, mine)
                    else:
                        moved = await groups.finish(started) if started.moved is None else started.moved
                    assert (moved.numpy() == target.local(whole, WORLD.rank)).all()
                    assert started is not None or turn == 0 or not way.steps or way.steps[0].name == "slice"

    on_every_rank(work)
