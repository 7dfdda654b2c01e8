"""More ranks come at once than rank 0 takes handshakes at a time: it drops the oldest, and all connect in the end."""

import asyncio
import random

import pytest

from tests.unit.transports.tcp.join.test_rendezvous import config, identity
from tests.virtual_time import virtual_seconds
from transports.tcp.join import rendezvous

RANKS, LIMIT, HANDSHAKE_S, WAIT_S = 128, 16, 0.5, 60.0


class BusyRank0(rendezvous.MeetingPoint):
    """Rank 0 far away, or on a machine with more ranks than cores: each handshake lasts, and few go on at a time."""

    def __init__(self):
        self._shaking, self.drops = [], 0

    async def listen(self):
        raise AssertionError("only rank 0 listens")

    async def find(self):
        return [("127.0.0.1", 1)]

    async def connect_to(self, address):
        return object()

    async def handshake_with(self, sock, address, me, peer, silence=None):
        dropped = asyncio.get_running_loop().create_future()
        self._shaking.append(dropped)
        if len(self._shaking) > LIMIT:
            self._shaking.pop(0).set_exception(ConnectionResetError("the peer closed the connection"))
            self.drops += 1
        done = asyncio.ensure_future(virtual_seconds(HANDSHAKE_S))
        await asyncio.wait({done, dropped}, return_when=asyncio.FIRST_COMPLETED)
        done.cancel()
        if dropped.done():
            dropped.result()
        self._shaking.remove(dropped)
        return me


@pytest.mark.virtual
async def test_all_ranks_of_a_crowd_connect_with_rank_0(monkeypatch):
    random.seed(1)
    rank_0 = BusyRank0()
    monkeypatch.setattr(rendezvous, "connect_to", rank_0.connect_to)
    monkeypatch.setattr(rendezvous, "handshake_with", rank_0.handshake_with)
    ranks = range(1, 1 + RANKS)
    wait = {"shared_key": b"secret", "wait": WAIT_S}
    answers = await asyncio.gather(
        *(
            rendezvous.connect_to_rank_0(config(rank, 1 + RANKS, **wait), rank_0, identity(rank, 1 + RANKS, b"secret"))
            for rank in ranks
        )
    )
    assert {hello.rank for _, hello in answers} == set(ranks)
    assert rank_0.drops > RANKS / 2, "it was no crowd"
