"""Two ranks that send each other bodies on every road, round by round, idle and while both compute.

Every road is timed in every round, right after the others, and every body is different and is checked.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from mpi4py import MPI

from benchmarks.links.beside_compute import Computing, Layers
from benchmarks.links.roads import Buffers, Messages, Raw, Road
from transports import Transport

CHANNEL = 7
Taken = Mapping[int, Mapping[str, Sequence[float]]]
"""Seconds of one way by size and road, round by round."""


class Pair:
    """This rank and the one it talks to.

    Args:
        comm: of mpi4py's own calls.
        rounds: to be timed, after one that is not.
    """

    def __init__(self, transport: Transport, comm: MPI.Comm, rounds: int):
        self._transport, self._comm, self._rounds = transport, comm, rounds
        self._first, self._peer = transport.rank == 0, 1 - transport.rank

    async def sizes(self, turns: Mapping[int, int]) -> Taken:
        """Every road with bodies of every size, so often there and back at a time as `turns` says of it."""
        taken = {nbytes: defaultdict[str, list[float]](list) for nbytes in turns}
        for round_ in range(self._rounds + 1):
            for nbytes, several in turns.items():
                for road in self._roads(nbytes, round_):
                    taken[nbytes][road.name].append(await self._timed(road, round_, several))
        return {nbytes: {road: several[1:] for road, several in roads.items()} for nbytes, roads in taken.items()}

    async def beside(self, nbytes: int, compute_s: float) -> tuple[list[float], list[float], list[float]]:
        """A message's seconds while both are idle and while both compute, and the share that computing lost."""
        layers, idle, moving, lost = Layers(), [], [], []
        computing = Computing(self._transport, self._peer, layers, layers.times_in(compute_s))
        for round_ in range(self._rounds + 1):
            road = self._roads(nbytes, round_)[-1]
            idle.append(await self._timed(road, round_, 1))
            await self._meet()
            moving.append(await computing.one_way(road, self._first))
            self._check(road, round_)
            await self._meet()
            lost.append(await computing.share_lost(round_))
        computing.close()
        return idle[1:], moving[1:], lost[1:]

    def _roads(self, nbytes: int, round_: int) -> tuple[Raw, Buffers, Messages]:
        body = self._body(self._transport.rank, nbytes, round_)
        return (
            Raw(self._peer, body, self._comm),
            Buffers(self._peer, body, self._transport, CHANNEL),
            Messages(self._peer, body, self._transport),
        )

    async def _timed(self, road: Road, round_: int, turns: int) -> float:
        """A quarter as many turns come first, untimed: the road before has left its own bytes in the caches."""
        await self._meet()
        await road.ping_pong(self._first, max(1, turns // 4))
        seconds = await road.ping_pong(self._first, turns)
        self._check(road, round_)
        return seconds

    async def _meet(self) -> None:
        """Begin together, both awake."""
        await self._transport.send(self._peer, ("meet",))
        await self._transport.receive(self._peer, ("meet",))

    def _check(self, road: Road, round_: int) -> None:
        """Raises RuntimeError where other bytes came than the peer sent."""
        expected = self._body(self._peer, road.body.nbytes, round_)
        if not np.array_equal(road.came, expected):
            wrong = int((road.came[: expected.size] != expected[: road.came.size]).sum())
            raise RuntimeError(f"{road.name} of {expected.nbytes} bytes came wrong (bytes that differ: {wrong})")

    @staticmethod
    def _body(rank: int, nbytes: int, round_: int) -> np.ndarray:
        return np.random.default_rng((rank, nbytes, round_)).integers(0, 256, nbytes, np.uint8)
