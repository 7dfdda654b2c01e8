"""Light members of a swarm: what each says in the directory and hears from it, and nothing else."""

import asyncio
from collections.abc import Set
from contextlib import suppress
from dataclasses import replace
from itertools import count

from benchmarks.swarm.growth_directory import DirectoryEnd, MemberEnd
from pipelined.membership.registration import Registration
from pipelined.swarm.records.members import (
    LEADER,
    NEWCOMERS,
    PEERS,
    TRAINERS,
    LeaderRecord,
    PeerRecord,
    Phase,
    TrainerRecord,
)
from pipelined.swarm.records.steps import Head
from pipelined.swarm.records.view import SwarmView
from transports import Nursery

MODEL = "growth"


class LightSwarm:
    """Peers and trainers at one directory.

    Args:
        tasks: what every member is a child of.
        lease_s: seconds of a member's lease and of its patience.
    """

    def __init__(self, end: DirectoryEnd, tasks: Nursery, stages: int, lease_s: float):
        self._end, self._tasks, self._stages, self._lease_s = end, tasks, stages, lease_s
        self._numbers, self._head = count(), Head(stages, MODEL)
        self._peers, self._absent = dict[str, LightMember](), ""
        self._all = list[LightMember]()
        self._running = [tasks.create_task(end.serve())]

    async def start(self, peers: int, trainers: int) -> None:
        """Start so many at once, and wait until each of them knows all members that it follows."""
        self.leader = self._begin(self._trainer)
        await self.leader.client.transact({}, {LEADER: LeaderRecord("leader", "light://leader").pack()})
        await self._write_head()
        others = [self._begin(self._trainer) for _ in range(trainers - 1)]
        for _ in range(peers):
            self._come()
        await self.leader.view.wait_for(lambda: self._serving() == peers)
        await self._end.clock.sleep(1.0)
        assert all(len(each.view.peers) == peers for each in others)

    async def join(self) -> None:
        """One more peer."""
        now = self._serving()
        self._come()
        await self.leader.view.wait_for(lambda: self._serving() == now + 1)

    async def die(self) -> None:
        """One peer less, without a word."""
        now = self._serving()
        _, member = self._peers.popitem()
        member.end.die()
        member.task.cancel()
        await self.leader.view.wait_for(lambda: self._serving() == now - 1)

    async def commit(self) -> None:
        """One step more, with the members of the one before; the first time with all of them."""
        members = [[] for _ in range(self._stages)]
        for name, member in self._peers.items():
            if name != self._absent:
                members[member.stage].append(name)
        self._head = replace(self._head, step=self._head.step + 1, members=members)
        await self._write_head()

    async def change(self) -> None:
        """One step more, in which another peer than before had no part: two stages at most have other members."""
        self._absent = next(name for name in reversed(self._peers) if name != self._absent)
        await self.commit()

    def stop(self) -> None:
        """End every task."""
        for task in [*self._running, *(member.task for member in self._all)]:
            task.cancel()

    async def _write_head(self) -> None:
        await self.leader.client.transact({}, self._head.entries(self.leader.view.step_members))

    def _serving(self) -> int:
        return sum(map(self.leader.view.census.count_holding, range(self._stages)))

    def _come(self) -> None:
        member = self._begin(self._peer)
        self._peers[member.name] = member

    def _begin(self, life) -> "LightMember":
        number = next(self._numbers)
        stages = frozenset() if life == self._peer else None
        member = LightMember(self._end, f"member-{number:05}", number, self._lease_s, stages)
        member.task = self._tasks.create_task(member.live(life))
        self._all.append(member)
        return member

    async def _trainer(self, member: "LightMember", place: Registration) -> None:
        await place.put(TrainerRecord(member.name, member.end.address, place.incarnation, MODEL))

    async def _peer(self, member: "LightMember", place: Registration) -> None:
        member.stage = int(member.name.rpartition("-")[2]) % self._stages
        await member.client.transact({}, {NEWCOMERS + member.name: member.end.address.encode()}, lease=place.lease)
        member.view.add(member.stage)
        peer = PeerRecord(member.name, member.end.address, place.incarnation, member.stage, Phase.JOINING, MODEL)
        await place.put(peer)
        await member.view.follow_stages({member.stage})
        await place.put(replace(peer, phase=Phase.SERVING))


class LightMember:
    """One member.

    Attributes:
        stage: of a peer.
        task: its life.
    """

    def __init__(self, end: DirectoryEnd, name: str, number: int, lease_s: float, stages: Set[int] | None):
        self.name, self._lease_s, self.stage = name, lease_s, -1
        self.end = MemberEnd(end, name, number + 2)
        self.client, self._clock = self.end.client(lease_s), end.clock
        self.view = SwarmView(self.client, self._clock, stages)
        self.task: asyncio.Task[None] | None = None

    async def live(self, life) -> None:
        """Follow the directory and keep a place in it, until cancelled."""
        prefix = TRAINERS if life.__name__ == "_trainer" else PEERS
        with suppress(asyncio.CancelledError):
            async with Nursery() as tasks:
                tasks.create_task(self.view.follow())
                lease = await self.client.grant(self._lease_s)
                tasks.create_task(lease.keep_alive(self._clock))
                await life(self, Registration(self.client, prefix + self.name, lease, self._clock))
