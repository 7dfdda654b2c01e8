"""Clauses on closing and aborting: what was sent is delivered, and no operation waits for ever."""

import asyncio

import pytest

from tests.conformance.neighbours import (
    LARGE,
    SMALL,
    all_raise,
    filled,
    left_of,
    meet_and_leave,
    outcomes,
    public,
    right_of,
    same,
    sending,
    wait_for_all,
)
from transports import Closed, PeerAborted, PeerLost, Transport, TransportError


async def an_end_has_no_public_member_that_a_wrapper_of_transports_would_lose(end):
    assert public(type(end)) - public(Transport) <= {"open"}  # to make one


async def what_was_sent_before_a_close_is_delivered(end):
    await meet_and_leave(end, 0)
    if end.rank == 0:
        sends = [end.send(rank, ("last", n), filled(0, n)) for rank in range(1, end.world_size) for n in (SMALL, LARGE)]
        sends += [end.send_buffer(rank, 1, memoryview(b"bare")) for rank in range(1, end.world_size)]
        async with sending(*sends):
            await end.close()
    else:
        for size in (LARGE, SMALL):
            assert same((await end.receive(0, ("last", size))).blocks[0], filled(0, size))
        mine = bytearray(4)
        await end.receive_buffer(0, 1, memoryview(mine))
        assert mine == b"bare"


async def a_closed_end_refuses_everything(end):
    await wait_for_all(end, "all here")
    pending = [
        asyncio.ensure_future(end.receive(end.rank, ("never",))),
        asyncio.ensure_future(end.receive(None, ("never",))),
        asyncio.ensure_future(end.receive_buffer(end.rank, 1, memoryview(bytearray(1)))),
    ]
    await asyncio.sleep(0)
    await end.close()
    await end.close()
    later = [
        end.receive(0, ("k",)),
        end.receive(None, ("k",)),
        end.send(0, ("k",)),
        end.send_buffer(0, 1, memoryview(b"")),
        end.receive_buffer(0, 1, memoryview(b"")),
    ]
    await all_raise(TransportError, "closed", *pending)
    await all_raise(Closed, f"rank {end.rank} is closed", *later)


async def a_peer_that_closed_is_not_waited_for(end):
    await meet_and_leave(end, 0)
    if end.rank == 0:
        return await end.close()
    pending = [
        asyncio.ensure_future(end.receive(0, ("never",))),
        asyncio.ensure_future(end.receive_buffer(0, 1, memoryview(bytearray(1)))),
    ]
    for lost in await all_raise(PeerLost, "rank 0", *pending):
        assert lost.rank == 0
    later = [end.send(0, ("k",)), end.receive(0, ("k",)), end.receive_buffer(0, 1, memoryview(bytearray(1)))]
    await all_raise(PeerLost, "rank 0", *later)


async def close_returns_with_unreceived_messages(end):
    await wait_for_all(end, "all here")
    sends = [
        asyncio.ensure_future(send)
        for peer in (right_of(end), end.rank)
        for send in (
            end.send(peer, ("unwanted",), filled(end.rank, SMALL)),
            end.send(peer, ("unwanted",), filled(end.rank, LARGE)),
            end.send_buffer(peer, 2, memoryview(bytes(100))),
            end.send_buffer(peer, 2, memoryview(bytes(4 * LARGE))),
        )
    ]
    await asyncio.sleep(0)
    await end.close()
    for outcome in await outcomes(*sends):
        assert outcome is None or isinstance(outcome, TransportError)


async def an_abort_reaches_all_ranks(end):
    await meet_and_leave(end, 0)
    if end.rank == 0:
        await end.abort("stage 3 ran out of luck")
        with pytest.raises(TransportError, match="luck"):
            await end.receive(1, ("k",))
        return
    unwanted = [
        asyncio.ensure_future(end.send(right_of(end), ("unwanted",), filled(end.rank, 64 * LARGE))),
        asyncio.ensure_future(end.send_buffer(right_of(end), 2, memoryview(filled(end.rank, 64 * LARGE)))),
    ]
    pending = [
        end.receive(right_of(end), ("never",)),
        end.receive(None, ("never",)),
        end.receive_buffer(left_of(end), 1, memoryview(bytearray(1))),
    ]
    for aborted in await all_raise(PeerAborted, "stage 3 ran out of luck", *pending):
        assert aborted.rank == 0
    for outcome in await outcomes(*unwanted):
        assert outcome is None or isinstance(outcome, TransportError)
    later = [end.send(0, ("k",)), end.receive(1, ("k",)), end.send_buffer(0, 1, memoryview(b""))]
    await all_raise(PeerAborted, "luck", *later)


async def an_abort_fails_what_waits_at_the_same_end(end):
    await meet_and_leave(end, 0)
    pending = asyncio.ensure_future(end.receive(end.rank, ("never",)))
    await asyncio.sleep(0)
    if end.rank == 0:
        await end.abort("rank 0 gave up")
        await end.close()
    await all_raise(TransportError, "gave up", pending)


async def a_body_that_raises_closes_its_end(end):
    await wait_for_all(end, "all here")
    with pytest.raises(ZeroDivisionError):
        async with end:
            1 / 0  # noqa: B018
    with pytest.raises(Closed):
        await end.send(0, ("k",))
