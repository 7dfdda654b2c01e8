"""Slow links around a world in this process, on the virtual clock: what arrives when, to the last digit."""

import asyncio

import numpy as np
import pytest

from tests.conformance.worlds import kill
from tests.virtual_time import virtual_seconds
from transports import Closed, PeerLost, open_local, open_transport
from transports.emulation.options import LinkProfile
from transports.emulation.transport import AHEAD_BYTES, SEND_BUFFER_BYTES, SlowTransport
from transports.local import world

pytestmark = pytest.mark.virtual

HEADS = 64  # bytes of preamble and header, at most, in here


def slowed(world_size=2, **shape):
    return [SlowTransport(end, LinkProfile(**shape)) for end in world(world_size)]


def now():
    return asyncio.get_running_loop().time()


async def closed(ends):
    await asyncio.gather(*(end.close() for end in ends))


async def test_a_message_and_a_buffer_arrive_a_delay_later():
    here, there = ends = slowed(delay=0.25)
    await here.send(1, ("k",), b"message", note="n")
    await here.send_buffer(1, 3, memoryview(b"bare"))
    assert now() == 0.0
    frame = await there.receive(0, ("k",))
    assert (now(), bytes(frame.blocks[0].data), frame.note) == (0.25, b"message", "n")
    room = bytearray(4)
    await there.receive_buffer(0, 3, memoryview(room))
    assert (now(), room) == (0.25, b"bare")
    await closed(ends)


async def test_a_send_returns_when_all_but_a_sockets_buffer_has_left():
    rate, size = 1000.0, AHEAD_BYTES // 2
    here, there = ends = slowed(delay=5.0, rate=rate)
    for n in range(4):
        await here.send(1, ("k", n), np.zeros(size, np.uint8))
        departs = (n + 1) * size / rate
        returns = max(0.0, departs - AHEAD_BYTES / rate)
        assert returns <= now() <= returns + 4 * HEADS / rate
    for n in range(4):
        arrives = max(now(), 5.0 + (n + 1) * size / rate)
        await there.receive(0, ("k", n))
        assert arrives <= now() <= arrives + 4 * HEADS / rate
    await closed(ends)


async def test_the_two_directions_and_other_peers_do_not_wait_for_each_other():
    ends = slowed(3, rate=1000.0)
    body = np.zeros(1000, np.uint8)
    await asyncio.gather(*(end.send(peer, ("k",), body) for end in ends for peer in range(3) if peer != end.rank))
    await asyncio.gather(*(end.receive(peer, ("k",)) for end in ends for peer in range(3) if peer != end.rank))
    assert 1.0 <= now() <= 1 + HEADS / 1000
    await closed(ends)


async def test_a_message_to_another_node_takes_the_link_between_nodes():
    ends = slowed(4, delay=1.0, ranks_per_node=2, far_delay=3.0)
    assert [end.nodes for end in ends] == [(0, 0, 2, 2)] * 4
    assert [end.ranks_here for end in ends] == [(0, 1, 2, 3)] * 4, "they share the cores of one machine"
    for source, target, seconds in ((2, 3, 1.0), (1, 2, 3.0)):
        began = now()
        await ends[source].send(target, ("k",), b"message")
        await ends[target].receive(source, ("k",))
        assert now() - began == seconds
    await closed(ends)


async def test_memory_may_be_reused_once_a_send_returns_though_the_bytes_are_still_under_way():
    here, there = ends = slowed(delay=1.0)
    body, note = np.zeros(1000, np.uint8), ["first"]
    await here.send(1, ("k",), body, note=note)
    body[:], note[0] = 1, "second"
    frame = await there.receive(0, ("k",))
    assert frame.note == ["first"] and not frame.blocks[0].numpy().any()
    await closed(ends)


async def test_beyond_the_window_a_send_waits_for_the_receiver_and_no_copy_is_made():
    here, there = ends = slowed(delay=1.0)
    body = np.zeros(SEND_BUFFER_BYTES + 1, np.uint8)
    sending = asyncio.ensure_future(here.send(1, ("large",), body))
    await virtual_seconds(7.0)
    assert not sending.done()
    await there.receive(0, ("large",))
    await sending
    assert now() == 7.0
    await here.send(1, ("small",), body[:-1])
    assert now() == 7.0
    await closed(ends)


async def test_unexpected_messages_do_not_delay_requested_ones():
    here, there = ends = slowed(delay=1.0)
    body = np.zeros(SEND_BUFFER_BYTES, np.uint8)
    sends = [asyncio.ensure_future(here.send(1, ("k", n), body)) for n in range(5)]
    for n in reversed(range(5)):
        await there.receive(0, ("k", n))
    assert now() == 1.0
    await asyncio.gather(*sends)
    await closed(ends)


async def test_a_loss_delays_its_frame_and_all_later_ones_and_drops_none():
    here, there = ends = slowed(delay=0.1, loss=0.5, seed=1)
    for n in range(50):
        await here.send(1, ("k",), note=n)
    arrivals = []
    for n in range(50):
        assert (await there.receive(0, ("k",))).note == n
        arrivals.append(now())
    assert arrivals[-1] >= 0.1 + 0.4
    await closed(ends)


async def test_close_waits_for_messages_under_way_and_refuses_later_ones():
    here, there = slowed(delay=3.0)
    await here.send(1, ("last",), b"word")
    closing = asyncio.ensure_future(here.close())
    await asyncio.sleep(0)
    with pytest.raises(Closed):
        await here.send(1, ("late",))
    await closing
    assert now() == 3.0
    assert bytes((await there.receive(0, ("last",))).blocks[0].data) == b"word"
    await there.close()


async def test_closes_at_the_same_time_all_return():
    """One of two once waited for ever: each kept its own future, and only the latest was resolved."""
    here, there = slowed(delay=3.0)
    await here.send(1, ("last",), b"word")
    async with asyncio.timeout(10.0):
        await asyncio.gather(here.close(), here.close(), here.close())
    assert now() == 3.0
    await there.close()


@pytest.mark.parametrize("turns", range(6))
async def test_a_message_that_arrives_during_a_close_is_delivered(turns):
    here, there = slowed(delay=3.0)
    await here.send(1, ("last",), b"word")
    await virtual_seconds(3.0)
    for _ in range(turns):
        await asyncio.sleep(0)
    await here.close()
    assert bytes((await there.receive(0, ("last",))).blocks[0].data) == b"word"
    await there.close()


async def test_a_send_under_way_to_a_peer_that_is_lost_ends_with_it():
    here, dying = slowed(rate=1.0)
    sending = asyncio.ensure_future(here.send(1, ("k",), bytes(2 * AHEAD_BYTES)))
    waiting = asyncio.ensure_future(here.receive(1, ("never",)))
    await virtual_seconds(1.0)
    kill(dying)
    for operation in (waiting, sending, here.send(1, ("later",))):
        with pytest.raises(PeerLost):
            await operation
    assert now() == 1.0
    await here.close()


async def test_an_abort_does_not_wait_for_messages_under_way():
    here, there = slowed(rate=1.0)
    sending = asyncio.ensure_future(here.send(1, ("k",), bytes(2 * AHEAD_BYTES)))
    await virtual_seconds(1.0)
    await here.abort("out of luck")
    with pytest.raises(Closed, match="out of luck"):
        await sending
    await there.close()
    assert now() == 1.0


async def test_a_rank_reaches_itself_at_once():
    end = await open_transport("local://?delay=1s")
    sending = asyncio.ensure_future(end.send(0, ("k",), b"self"))
    await end.receive(0, ("k",))
    await sending
    assert now() == 0.0
    await end.close()


async def test_a_transports_own_collectives_and_a_shape_do_not_go_together():
    ends = open_local("local://?delay=1s", 2)
    assert [await end.open_native((0, 1), 1) for end in ends] == [None, None]
    await closed(ends)
