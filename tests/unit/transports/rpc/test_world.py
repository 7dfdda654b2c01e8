"""Worlds of ranks between endpoints: opened together, lost with a party, closed to strangers and to malformed notes."""

import asyncio

import numpy as np
import pytest

from collectives.clusters import Rings, Share
from transports import PeerLost
from transports.rpc import Rejected, open_endpoint
from transports.rpc.virtual.network import VirtualNetwork
from transports.rpc.world import BUFFER, END, MESSAGE, OPEN, Worlds
from transports.wire.frames import pack_header

ROOM = 1 << 20


async def opened(ends, name="world"):
    addresses = [end.address for end in ends]
    return await asyncio.gather(*(Worlds(end, ROOM).open(name, addresses) for end in ends))


@pytest.fixture
def network():
    return VirtualNetwork(delay=1e-3)


@pytest.mark.virtual
async def test_a_world_opens_when_the_last_party_opens_it(network):
    one, other = network.endpoint("one"), network.endpoint("other")
    addresses = [one.address, other.address]
    worlds = Worlds(other, ROOM)
    first = asyncio.ensure_future(Worlds(one, ROOM).open("late", addresses))
    await asyncio.sleep(1.0)
    assert not first.done()
    second = await worlds.open("late", addresses)
    assert (await first).rank == 0 and second.rank == 1


@pytest.mark.virtual
async def test_a_killed_party_is_lost_to_all_that_wait_for_it(network):
    ends = await opened([network.endpoint(name) for name in "abc"])
    waiting = [asyncio.ensure_future(end.receive(2, ("never",))) for end in ends[:2]]
    await asyncio.sleep(0.01)
    network.kill("c")
    for done in waiting:
        with pytest.raises(PeerLost, match="lost rank 2"):
            await done
    with pytest.raises(PeerLost, match="lost rank 2"):
        await ends[0].send(2, ("k",))
    sent = asyncio.ensure_future(ends[0].send(1, ("still",), note=1))
    assert (await ends[1].receive(0, ("still",))).note == 1
    await sent


@pytest.mark.virtual
async def test_a_party_that_is_not_there_ends_the_opening(network):
    one = network.endpoint("one")
    worlds = Worlds(one, ROOM)
    with pytest.raises(PeerLost, match="lost rank 1"):
        await worlds.open("world", [one.address, "virtual://nowhere"])
    assert (await worlds.open("world", [one.address])).world_size == 1


@pytest.mark.virtual
async def test_a_world_that_cannot_be_is_refused(network):
    one = network.endpoint("one")
    worlds = Worlds(one, ROOM)
    for addresses in (["virtual://other"], [one.address, one.address]):
        with pytest.raises(ValueError, match="no world"):
            await worlds.open("world", addresses)


@pytest.mark.virtual
async def test_strangers_and_malformed_notes_are_refused_and_fail_nothing(network):
    ends = [network.endpoint(name) for name in "ab"]
    world, _ = await opened(ends)
    stranger, address = network.endpoint("stranger"), ends[0].address
    array = np.zeros(3, np.float32)
    good = pack_header(("k",), [])
    refused = [
        (stranger, OPEN, "world", (), "stranger"),
        (stranger, MESSAGE, ["world", good], (), "stranger"),
        (stranger, END, ["world", "bye", True], (), "stranger"),
        (ends[1], OPEN, 7, (), "malformed"),
        (ends[1], MESSAGE, ["world"], (), "malformed"),
        (ends[1], MESSAGE, ["world", b"\xc1"], (), "malformed"),
        (ends[1], MESSAGE, ["world", 7], (), "malformed"),
        (ends[1], MESSAGE, ["world", good], (array,), "malformed"),
        (ends[1], BUFFER, ["world", "one"], (array,), "malformed"),
        (ends[1], BUFFER, ["world", 1], (), "malformed"),
        (ends[1], BUFFER, ["other", 1], (array,), "closed"),
        (ends[1], MESSAGE, ["world", good], (np.zeros(ROOM, np.float32),), "too large"),
    ]
    for sender, topic, note, arrays, reason in refused:
        with pytest.raises(Rejected) as seen:
            await sender.request(address, topic, *arrays, note=note)
        assert seen.value.reason == reason, note
    assert not ends[0].failed.done() and not world.probe(None, ("k",))


@pytest.mark.virtual
async def test_rings_between_uneven_clusters_send_their_bytes_over_endpoints(network):
    """1,200 elements cut at 600, and at 300 and 900: four rings, and a node sends its bytes once."""
    clusters = [
        [Share(0, 0, 600), Share(1, 600, 1200)],
        [Share(2, 0, 300), Share(3, 300, 900), Share(4, 900, 1200)],
    ]
    ends = await opened([network.endpoint(f"n{rank}") for rank in range(5)])
    arrays = [np.arange(s.low, s.high, dtype=np.float64) * (1 + c) for c, row in enumerate(clusters) for s in row]
    await asyncio.gather(
        *(Rings(end, clusters, 0).all_reduce([array]) for end, array in zip(ends, arrays, strict=True))
    )
    for share, array in zip([share for row in clusters for share in row], arrays, strict=True):
        assert (array == 1.5 * np.arange(share.low, share.high)).all()
    assert [end.traffic.bytes_sent for end in ends] == [8 * n for n in (600, 600, 300, 600, 300)]


def test_ranks_meet_over_tcp():
    async def main():
        ends = [await open_endpoint("tcp://127.0.0.1:0") for _ in range(3)]
        worlds = await opened(ends)
        async with asyncio.TaskGroup() as tasks:
            for world in worlds:
                tasks.create_task(world.send((world.rank + 1) % 3, ("round", 1), np.full(5, world.rank)))
            for world in worlds:
                tasks.create_task(arrives(world))
        await worlds[0].close()
        with pytest.raises(PeerLost, match="it closed"):
            await worlds[1].receive(0, ("never",))
        for end in ends:
            await end.close()

    async def arrives(world):
        message = await world.receive((world.rank - 1) % 3, ("round", 1))
        assert (message.blocks[0].numpy() == (world.rank - 1) % 3).all()

    asyncio.run(main())
