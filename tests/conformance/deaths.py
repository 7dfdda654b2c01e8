"""Clauses on ranks that die without a message, for transports that `kill` knows; the last rank dies."""

import asyncio

import pytest

from tests.conformance.neighbours import LARGE, SMALL, all_raise, filled, meet_and_leave, outcomes, same, sending
from tests.conformance.worlds import kill
from transports import PeerLost, TransportError


def _victim(end):
    return end.world_size - 1


async def a_dead_peer_is_named_by_everything_that_waits_for_it(end):
    await meet_and_leave(end, _victim(end))
    if end.rank == _victim(end):
        return kill(end)
    works = [
        end.receive(_victim(end), ("never",)),
        end.receive_buffer(_victim(end), 1, memoryview(bytearray(1))),
    ]
    for lost in await all_raise(PeerLost, f"rank {_victim(end)}", *works):
        assert lost.rank == _victim(end)


async def later_operations_on_a_dead_peer_fail_at_once(end):
    await meet_and_leave(end, _victim(end))
    if end.rank == _victim(end):
        return kill(end)
    with pytest.raises(PeerLost):
        await end.receive(_victim(end), ("never",))
    works = [
        end.receive(_victim(end), ("k",)),
        end.send(_victim(end), ("k",)),
        end.send(_victim(end), ("k",), filled(end.rank, LARGE)),
        end.send_buffer(_victim(end), 1, memoryview(b"x")),
        end.receive_buffer(_victim(end), 1, memoryview(bytearray(1))),
    ]
    await all_raise(PeerLost, f"rank {_victim(end)}", *works)


async def a_send_that_a_dead_peer_never_took_does_not_wait_for_ever(end):
    await meet_and_leave(end, _victim(end))
    if end.rank == _victim(end):
        return kill(end)
    send = asyncio.ensure_future(end.send(_victim(end), ("unwanted",), filled(end.rank, 256 * LARGE)))
    (outcome,) = await outcomes(send)
    assert isinstance(outcome, PeerLost)


async def the_dead_rank_itself_raises(end):
    await meet_and_leave(end, _victim(end))
    if end.rank == _victim(end):
        pending = asyncio.ensure_future(end.receive(0, ("never",)))
        await asyncio.sleep(0)
        kill(end)
        await all_raise(TransportError, "", pending, end.send(0, ("k",)))


async def survivors_go_on(end):
    """Both with one another and with receives from anyone, as long as anyone is left."""
    await meet_and_leave(end, _victim(end))
    if end.rank == _victim(end):
        return kill(end)
    with pytest.raises(PeerLost):
        await end.receive(_victim(end), ("never",))
    if end.world_size == 2:
        with pytest.raises(PeerLost):
            await end.receive(None, ("never",))
        return
    survivors = range(_victim(end))
    for size in (SMALL, LARGE):
        async with sending(*(end.send(rank, ("on", size), filled(end.rank, size)) for rank in survivors)):
            messages = [await end.receive(None, ("on", size)) for _ in survivors]
        assert all(same(message.blocks[0], filled(message.source, size)) for message in messages)
