"""Exchanges between all ranks of one process, and what they cost."""

import asyncio
from math import ceil, log2

from transports.local import world


class Counting:
    """An end that counts how many messages, one after another, led to what it knows."""

    def __init__(self, end, on_the_way):
        self._end, self._on_the_way, self.hops = end, on_the_way, 0

    def __getattr__(self, name):
        return getattr(self._end, name)

    async def send(self, peer, key, *arrays):
        self._on_the_way[self.rank, peer, key] = self.hops + 1
        await self._end.send(peer, key, *arrays)

    async def receive(self, peer, key):
        frame = await self._end.receive(peer, key)
        self.hops = max(self.hops, self._on_the_way.pop((peer, self.rank, key)))
        return frame


def on_all(size, work):
    """What work(end) gives or raises on every rank, and the ends."""
    on_the_way = {}
    ends = [Counting(end, on_the_way) for end in world(size)]

    async def main():
        return await asyncio.wait_for(asyncio.gather(*map(work, ends), return_exceptions=True), 30)

    return asyncio.run(main()), ends


def check_cost(ends, rounds):
    """No more messages one after another than `rounds` times the levels of a tree, and no more from one rank."""
    levels = ceil(log2(len(ends)))
    assert max(end.hops for end in ends) <= rounds * levels
    assert max(end.traffic.messages_sent for end in ends) <= levels + (rounds - 1)
    assert sum(end.traffic.messages_sent for end in ends) == rounds * (len(ends) - 1)
