"""A swarm with a fluid as throughput: every stage passes on what its peers can do, and the smallest decides.

All of it runs on the virtual clock: peers join and die by a trace, hold leases and write records in the real directory,
publish their loads, choose their stages as real peers do, and are moved by the real rebalancer. Decisions know only the
real view, in which a dead peer remains until its lease ends. No microbatch is computed.
"""

import asyncio
import random
from dataclasses import dataclass

from benchmarks.swarm.account import Account
from benchmarks.swarm.availability import Trace
from benchmarks.swarm.directory import DirectDirectory
from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.membership.registration import Registration
from pipelined.swarm.leader.reassignment import RebalanceTimer, rebalance
from pipelined.swarm.leader.stage_assigner import StageAssigner
from pipelined.swarm.records.members import PEERS, PeerRecord, Phase
from pipelined.swarm.records.view import SwarmView
from transports import Nursery


@dataclass(frozen=True)
class Policy:
    """What is done about peers that come and go.

    Args:
        period: seconds between two rebalancings; 0: no peer moves.
        placed: newcomers go where real ones go, to the stage with the fewest peers; else to a stage at random.
        fetch: seconds that a peer takes to fetch its stage's state; until then it does nothing.
        lease: seconds; renewed thrice in that time.
    """

    period: float = 0.0
    placed: bool = True
    fetch: float = 0.0
    lease: float = 60.0


def play(trace: Trace, stages: int, policy: Policy, seed: int) -> Account:
    """Play a trace to its end.

    Args:
        seed: of the trace, and of which peers are struck.
    """
    return run_virtual(_Swarm(trace, stages, policy, seed).run())


class _Swarm:
    """The true state (the peers that live, and serve) beside the view's."""

    def __init__(self, trace: Trace, stages: int, policy: Policy, seed: int):
        self._trace, self._policy, self._seed = trace, policy, seed
        self._draw, self._clock = random.Random(f"stages {seed}"), VirtualClock()
        self._directory = DirectDirectory(self._clock)
        self._view = SwarmView(self._directory, self._clock)
        self._alive: list[dict[str, Registration]] = [{} for _ in range(stages)]
        self._serving: list[dict[str, None]] = [{} for _ in range(stages)]
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._published: dict[str, float | None] = {}
        self._account, self._since, self._came = Account(), 0.0, 0

    async def run(self) -> Account:
        for number in range(self._trace.peers):
            await self._join(number % len(self._alive))
        async with Nursery() as self._tasks:
            beside = [self._tasks.create_task(self._view.follow())]
            if self._policy.period:
                beside.append(self._tasks.create_task(self._rebalance()))
            await self._play_trace()
            for task in (*beside, *self._fetching.values()):
                task.cancel()
        return self._account

    async def _play_trace(self) -> None:
        for change in self._trace.changes(self._seed):
            await self._clock.sleep(change.moment - self._clock.now())
            self._settle()
            for _ in range(abs(change.peers)):
                await self._come() if change.peers > 0 else self._strike()
        await self._clock.sleep(self._trace.seconds - self._clock.now())
        self._settle()

    async def _look(self) -> tuple[list[dict[str, None]], list[dict[str, float]]]:
        """By stage, the peers that are joining it, and the serving peers with their loads.

        Every serving peer publishes its load; that of a dead one remains until its lease ends.
        """
        flow = min(map(len, self._serving))
        for serving in self._serving:
            self._published.update(dict.fromkeys(serving, flow / len(serving) if serving else 0.0))
        await self._hear()
        coming, loads = [{} for _ in self._alive], [{} for _ in self._alive]
        for name, peer in self._view.peers.items():
            if peer.phase == Phase.SERVING:
                loads[peer.stage][name] = self._published[name]
            else:
                coming[peer.stage][name] = None
        return coming, loads

    async def _hear(self) -> None:
        await self._view.wait_for(lambda: self._view.revision == self._directory.machine.revision)

    async def _rebalance(self) -> None:
        timer = RebalanceTimer(rebalance, self._policy.period, self._clock)
        while True:
            await self._clock.sleep(self._policy.period)
            for name, target in timer.take_moves(*await self._look()).items():
                await self._carry_out(name, target)

    async def _carry_out(self, name: str, target: int) -> None:
        source = self._view.peers[name].stage
        registration = self._alive[source].pop(name, None)
        if registration is None:
            return  # the order is given to one that is dead
        self._settle()
        self._account.moves += 1
        del self._serving[source][name]
        await self._begin_to_fetch(name, registration, target)

    async def _come(self) -> None:
        name, registration = await self._stand()
        await self._hear()
        stages = len(self._alive)
        placing = StageAssigner(self._view, stages)
        stage = placing.stage_for(name) if self._policy.placed else self._draw.randrange(stages)
        await self._begin_to_fetch(name, registration, stage)

    async def _join(self, stage: int) -> None:
        """Serve from the beginning."""
        name, registration = await self._stand()
        self._alive[stage][name] = registration
        await self._serve(name, registration, stage)

    async def _stand(self) -> tuple[str, Registration]:
        self._came += 1
        name, lease = f"peer-{self._came:05}", await self._directory.grant(self._policy.lease)
        self._directory.keep(lease)
        return name, Registration(self._directory, PEERS + name, lease, self._clock)

    async def _begin_to_fetch(self, name: str, registration: Registration, stage: int) -> None:
        self._alive[stage][name] = registration
        if self._policy.fetch:
            await registration.put(_record(name, registration, stage, Phase.JOINING))
            self._fetching[name] = self._tasks.create_task(self._fetch(name, registration, stage))
        else:
            await self._serve(name, registration, stage)

    async def _fetch(self, name: str, registration: Registration, stage: int) -> None:
        await self._clock.sleep(self._policy.fetch)
        del self._fetching[name]
        await self._serve(name, registration, stage)

    async def _serve(self, name: str, registration: Registration, stage: int) -> None:
        self._settle()
        self._serving[stage][name], self._published[name] = None, None
        await registration.put(_record(name, registration, stage, Phase.SERVING))

    def _strike(self) -> None:
        """One peer dies: of a stage drawn uniformly among those that have any, as in the paper."""
        stage = self._draw.choice([at for at, alive in enumerate(self._alive) if alive])
        name = self._draw.choice(list(self._alive[stage]))
        self._directory.forsake(self._alive[stage].pop(name).lease)
        self._serving[stage].pop(name, None)
        if name in self._fetching:
            self._fetching.pop(name).cancel()

    def _settle(self) -> None:
        """Account for the time since something last changed."""
        now = self._clock.now()
        alive = sum(map(len, self._alive))
        self._account.add(self._since, now, min(map(len, self._serving)), alive / len(self._alive))
        self._since = now


def _record(name: str, registration: Registration, stage: int, phase: Phase) -> PeerRecord:
    return PeerRecord(name, f"virtual://{name}", registration.incarnation, stage, phase, "fluid")
