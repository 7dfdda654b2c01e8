"""Every endpoint keeps every clause; one that appears in transports/endpoints/ is tested here."""

import asyncio
from itertools import count

import pytest

from pipelined.aio.clock import run_virtual
from tests.conformance.requests import CLAUSES
from transports.emulation.options import LinkProfile
from transports.rpc import endpoint_schemes
from transports.rpc.tcp.endpoint import open_at
from transports.rpc.tcp.identity import parse_address
from transports.rpc.virtual.network import VirtualNetwork

ROOM = 1 << 30


class Virtual:
    """Parties of a virtual network, on the virtual clock."""

    run = staticmethod(run_virtual)

    def __init__(self):
        self.network, self.numbers = VirtualNetwork(seed=1, delay=0.01, jitter=0.005), count()

    async def open(self, room=ROOM, at=None):
        self.network.max_in_flight = room
        return self.network.endpoint(f"party {next(self.numbers)}" if at is None else at.process.name)

    async def kill(self, end):
        self.network.kill(end.process.name)


class Tcp:
    """Parties on loopback."""

    shape = None

    @staticmethod
    def run(main):
        async def in_time():
            async with asyncio.timeout(30):
                await main

        asyncio.run(in_time())

    async def open(self, room=ROOM, at=None):
        return await open_at(("127.0.0.1", 0) if at is None else parse_address(at.address), b"key", self.shape, room)

    async def kill(self, end):
        await end.close()


class SlowTcp(Tcp):
    """The same behind slow links."""

    shape = LinkProfile(delay=2e-3, jitter=1e-3, rate=1e9)


WORLDS = {"virtual": Virtual, "tcp": Tcp, "slow tcp": SlowTcp}


class Opened:
    """A world that closes the endpoints that it opened."""

    def __init__(self, world):
        self._world, self._ends = world, []

    async def open(self, **options):
        self._ends.append(await self._world.open(**options))
        return self._ends[-1]

    async def kill(self, end):
        await self._world.kill(end)

    async def close(self):
        for end in self._ends:
            await end.close()


@pytest.mark.parametrize("clause", CLAUSES)
@pytest.mark.parametrize("scheme", WORLDS)
def test_clause(scheme, clause):
    async def main():
        world = Opened(WORLDS[scheme]())
        try:
            await CLAUSES[clause](world)
        finally:
            await world.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, "tasks outlive their endpoints"

    WORLDS[scheme].run(main())


def test_every_endpoint_is_under_the_suite():
    assert {"virtual", *endpoint_schemes()} == {world.split()[-1] for world in WORLDS}
