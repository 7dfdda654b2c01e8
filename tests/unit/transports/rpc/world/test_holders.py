"""Worlds in which a rank has two holders: each message arrives once, whichever holder is lost, and when."""

import asyncio
from contextlib import suppress

import numpy as np
import pytest

from tests.virtual_time import virtual_seconds
from transports import Closed, PeerLost, TransportError
from transports.rpc.virtual.network import VirtualNetwork
from transports.rpc.world import RankHolder, Worlds
from transports.rpc.world.holders import Holders

pytestmark = pytest.mark.virtual
RANKS = {"a": 0, "b": 1, "c": 2, "b2": 1}
"""The parties of the world, and the rank of each."""


class World:
    """Three ranks, of which the middle one has a backup; each party's end and endpoint's worlds by name."""

    def __init__(self, absent=()):
        self.network = VirtualNetwork(delay=1e-3)
        self.worlds = {name: Worlds(self.network.endpoint(name), 1 << 20) for name in RANKS if name not in absent}

    async def open(self, *names):
        every = [f"virtual://{name}" for name in RANKS]
        opening = {n: self.worlds[n].open("world", every[:3], ["", every[3], ""]) for n in names or self.worlds}
        self.ends = dict(zip(opening, await asyncio.gather(*opening.values()), strict=True))
        return self.ends


async def relay(end, many):
    """The middle rank's program: take numbers from rank 0, send their squares on; the last one bare."""
    for number in range(many):
        message = await end.receive(0, ("number", number))
        await end.send(2, ("square",), message.blocks[0].numpy() ** 2)
    await end.send_buffer(2, 3, memoryview(np.full(4, float(many))))


async def give(end, many):
    for number in range(many):
        await end.send(1, ("number", number), np.full(3, float(number)))


async def take(end, many):
    squares = [(await end.receive(1, ("square",))).blocks[0].numpy()[0] for _ in range(many)]
    last = np.zeros(4)
    await end.receive_buffer(1, 3, memoryview(last))
    return squares, last[0], end.probe(1, ("square",))


async def ignoring_its_end(work):
    with suppress(TransportError):
        await work


@pytest.mark.parametrize("lost", ["b", "b2", None])
@pytest.mark.parametrize("after_s", [0.0, 0.0015, 0.004, 0.011, 0.02])
async def test_each_message_arrives_once_and_in_order_whichever_holder_is_lost(lost, after_s):
    world = World()
    ends, many = await world.open(), 8
    relays = [asyncio.ensure_future(ignoring_its_end(relay(ends[name], many))) for name in ("b", "b2")]
    giving, taking = asyncio.ensure_future(give(ends["a"], many)), asyncio.ensure_future(take(ends["c"], many))
    await virtual_seconds(after_s)
    if lost:
        world.network.kill(lost)
    assert await taking == ([float(n * n) for n in range(many)], many, False)
    await giving
    for task in relays:
        task.cancel()


async def test_a_rank_is_lost_with_its_last_holder():
    world = World()
    ends = await world.open()
    waiting = asyncio.ensure_future(ends["c"].receive(1, ("never",)))
    world.network.kill("b2")
    await virtual_seconds(0.01)
    assert not waiting.done() and not RankHolder(ends["b"]).has_twin
    world.network.kill("b")
    with pytest.raises(PeerLost, match="lost rank 1"):
        await waiting
    with pytest.raises(PeerLost, match="lost rank 1"):
        await ends["a"].send(1, ("k",))


@pytest.mark.parametrize(("name", "killed"), [("a", ["b", "b2", "c"]), ("b", ["a", "c"])])
async def test_a_receive_from_any_rank_fails_with_the_last_other_rank_whether_or_not_this_rank_has_a_backup(
    name, killed
):
    world = World()
    ends = await world.open()
    waiting = asyncio.ensure_future(ends[name].receive(None, ("never",)))
    for party in killed:
        await virtual_seconds(0.01)
        assert not waiting.done()
        world.network.kill(party)
    with pytest.raises(PeerLost):
        await waiting


async def test_a_holder_that_aborts_beside_the_other_is_lost_alone():
    ends = await World().open()
    await ends["b"].abort("it fails alone")
    sent = asyncio.ensure_future(ends["b2"].send(2, ("k",), note=1))
    assert (await ends["c"].receive(1, ("k",))).note == 1
    await sent
    await ends["b2"].abort("it fails, too")
    with pytest.raises(TransportError):
        await ends["c"].receive(1, ("never",))


async def test_a_holder_that_aborts_after_the_other_one_has_closed_fails_no_rank():
    """The first holder has sent all that the slower one would send, so the other ranks go on to their end."""
    ends = await World().open()
    await ends["b"].send(2, ("k",), note=1)
    await ends["b"].close()
    await ends["b2"].abort("it was stopped")
    assert (await ends["c"].receive(1, ("k",))).note == 1
    await asyncio.gather(ends["a"].send(1, ("k",)), ends["a"].send(2, ("k",)), ends["c"].receive(0, ("k",)))


@pytest.mark.parametrize("reason", ["boom", "it closed"])
async def test_an_abort_is_no_orderly_close_whatever_its_reason(reason):
    world = World()
    ends = await world.open()
    await ends["b2"].abort(reason)
    world.network.kill("b")
    await virtual_seconds(0.01)
    with pytest.raises(PeerLost, match="lost rank 1"):
        await ends["a"].send(1, ("k",))


async def test_a_world_opens_without_a_holder_that_is_not_there():
    ends = await World(absent=["b2"]).open()
    assert ends["b"].world_size == 3 and not RankHolder(ends["b"]).has_twin and not RankHolder(ends["b"]).is_backup


async def test_a_silent_holder_that_is_gone_holds_nothing_up():
    world = World()
    world.network.freeze("b2")
    opening = asyncio.ensure_future(world.open("a", "b", "c"))
    await virtual_seconds(1.0)
    assert not opening.done()
    for name in "abc":
        world.worlds[name].lose(["virtual://b2"])
    ends = await opening
    await asyncio.gather(ends["a"].send(1, ("k",)), ends["b"].receive(0, ("k",)))
    await asyncio.gather(*(ends[name].close() for name in "abc"))


async def test_a_holder_that_is_gone_before_a_world_opens_is_not_waited_for():
    world = World()
    world.network.freeze("b2")
    for name in "abc":
        world.worlds[name].lose(["virtual://b2"])
    assert not RankHolder((await world.open("a", "b", "c"))["b"]).has_twin


async def test_a_rank_that_ended_its_program_needs_nothing_more_from_the_slower_holder():
    ends = await World().open()
    await asyncio.gather(ends["b"].send(2, ("k",), note=1), ends["c"].receive(1, ("k",)))
    await ends["c"].close()
    await ends["b2"].send(2, ("k",), note=1)


async def test_a_message_that_no_holder_takes_is_not_lost_in_silence():
    world = World(absent=["b", "b2"])
    world.worlds |= {name: Worlds(world.network.endpoint(name), 64) for name in ("b", "b2")}
    ends = await world.open()
    with pytest.raises(PeerLost, match=r"lost rank 1: rank 1 did not take the message: .*too large"):
        await ends["a"].send(1, ("k",), np.zeros(1000))


async def test_two_holders_of_a_rank_send_each_other_messages_of_their_own():
    ends = await World().open()
    await RankHolder(ends["b"]).send(("state",), np.arange(3), note="n")
    message = await RankHolder(ends["b2"]).receive(("state",))
    assert message.note == "n" and message.blocks[0].numpy().tolist() == [0, 1, 2] and message.source == 1
    assert (RankHolder(ends["b"]).is_backup, RankHolder(ends["b2"]).is_backup, ends["b"].rank, ends["b2"].rank) == (
        False,
        True,
        1,
        1,
    )


async def test_what_a_holder_sends_to_the_other_comes_from_no_rank():
    ends = await World().open()
    await RankHolder(ends["b"]).send(("k",), note="private")
    assert not ends["b2"].probe(None, ("k",))
    with pytest.raises(ValueError, match="peer: 3, world size: 3"):
        await ends["b2"].receive(3, ("k",))
    await asyncio.gather(ends["a"].send(1, ("k",), note="public"), ends["b"].receive(0, ("k",)))
    assert (await ends["b2"].receive(None, ("k",))).note == "public"
    assert (await RankHolder(ends["b2"]).receive(("k",))).note == "private"


async def test_a_receive_from_the_other_holder_ends_with_it_or_with_this_end_and_needs_one():
    world = World()
    ends = await world.open()
    holders = {name: RankHolder(end) for name, end in ends.items()}
    with pytest.raises(ValueError, match="rank 0 has one holder"):
        await holders["a"].receive(("k",))
    waiting = [asyncio.ensure_future(holders[name].receive(("never",))) for name in ("b", "b2")]
    await ends["b2"].close()
    with pytest.raises(Closed):
        await waiting[1]
    for each in (waiting[0], holders["b"].receive(("k",))):
        with pytest.raises(PeerLost, match="lost rank 1: it closed"):
            await each


async def test_the_first_copies_are_counted_by_key_and_leave_no_entries():
    holders = Holders(["a", "b"], ["", "c"], "a")
    copies = [(1, "k"), (1, "k"), (2, "k"), (2, "l"), (1, "l"), (2, "k"), (2, "k"), (1, "k")]
    firsts = [holders.record_copy(member, "message", (key,)) for member, key in copies]
    assert firsts == [True, True, False, True, False, False, True, False]
    assert not holders._ahead
