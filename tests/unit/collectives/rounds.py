"""A network in rounds, for counting steps: what is sent in one round arrives at the start of the next."""

import asyncio
from collections import defaultdict, deque

from transports import Traffic

SETTLED = 40  # turns of the loop after which a waiting task waits for a message


class Rounds:
    """All ranks' links, and the count of rounds in which anything moved."""

    def __init__(self, size):
        self.rounds = 0
        self.ends = [End(self, rank, size) for rank in range(size)]
        self._on_the_way = []
        self._arrived = defaultdict(deque)
        self._waiting = {}

    def run(self, *calls):
        """Run one coroutine a rank to its end; return the number of rounds it took."""
        asyncio.run(asyncio.wait_for(self._conduct(calls), 30))
        return self.rounds

    async def _conduct(self, calls):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
            while not all(task.done() for task in tasks):
                for _ in range(SETTLED):
                    await asyncio.sleep(0)
                self._next_round()

    def _next_round(self):
        self.rounds += bool(self._on_the_way)
        for link, message in self._on_the_way:
            if link in self._waiting:
                buffer, woken = self._waiting.pop(link)
                buffer[:] = message  # as a network card does: long before the receiver wakes
                woken.set_result(None)
            else:
                self._arrived[link].append(message)
        self._on_the_way.clear()

    def send(self, link, message):
        self._on_the_way.append((link, message))

    async def receive(self, link, buffer):
        if self._arrived[link]:
            buffer[:] = self._arrived[link].popleft()
        else:
            woken = asyncio.get_running_loop().create_future()
            self._waiting[link] = buffer, woken
            await woken


class End:
    """One rank's end, with as much of `Transport` as a group needs."""

    def __init__(self, network, rank, world_size):
        self._network, self.rank, self.world_size, self.traffic = network, rank, world_size, Traffic()

        self.nodes = (0,) * world_size

    def next_serial(self, what):
        return 0

    def probe(self, peer, key):
        return False

    async def send_buffer(self, peer, channel, buffer):
        self.traffic.count_sent(peer, len(buffer))
        self._network.send((self.rank, peer, channel), bytes(buffer))

    async def receive_buffer(self, peer, channel, buffer):
        await self._network.receive((peer, self.rank, channel), buffer)
