"""A swarm whose throughput is a fluid: every stage passes on what its peers can do, and the smallest decides.

Everything is played on the virtual clock: peers come and die by a trace, hold leases as in the directory and renew
them, publish their loads, and are moved by the real rebalancer. The rule: whoever decides knows what the membership
says, in which a dead peer lives until its lease runs out. No microbatch is played.
"""

import asyncio
import random
from dataclasses import dataclass, field

from benchmarks._swarm_trace import Trace
from pipelined.clock import VirtualClock, run_virtual
from pipelined.swarm.directory.leases import Leases
from pipelined.swarm.rebalance import moves, pause, place

HOUR = 3600.0


@dataclass(frozen=True)
class Policy:
    """What is done about peers that come and go.

    Args:
        period: seconds between two looks of the rebalancer; 0: nobody moves.
        placed: newcomers go where the rebalancer would have them, else to a stage at random.
        fetch: seconds that a peer takes to fetch its stage's state; until then it does nothing.
        lease: seconds; renewed thrice in that time.
    """

    period: float = 0.0
    placed: bool = True
    fetch: float = 0.0
    lease: float = 60.0


@dataclass
class Account:
    """What was done, and what peers/stages at every moment would have done, in peer-seconds; by hour."""

    done: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    moves: int = 0

    def add(self, start: float, end: float, rate: float, best: float) -> None:
        """Both rates held from start to end."""
        while start < end:
            hour = int(start // HOUR)
            until = min(end, (hour + 1) * HOUR)
            self.done += [0.0] * (hour + 1 - len(self.done))
            self.best += [0.0] * (hour + 1 - len(self.best))
            self.done[hour] += rate * (until - start)
            self.best[hour] += best * (until - start)
            start = until

    def percent(self, hours: slice = slice(None)) -> float:
        """Of the optimum, over these hours."""
        return 100 * sum(self.done[hours]) / sum(self.best[hours])


def play(trace: Trace, stages: int, policy: Policy, seed: int) -> Account:
    """Play a trace to its end.

    Args:
        seed: of the trace, and of which peers are struck.
    """
    return run_virtual(_Swarm(trace, stages, policy, seed).run())


class _Swarm:
    def __init__(self, trace: Trace, stages: int, policy: Policy, seed: int):
        self._trace, self._policy, self._seed = trace, policy, seed
        self._draw, self._clock = random.Random(f"stages {seed}"), VirtualClock()
        self._serving: list[dict[str, None]] = [{} for _ in range(stages)]
        self._alive: dict[str, int] = {}
        self._known: list[dict[str, float | None]] = [{} for _ in range(stages)]
        self._leases, self._names, self._numbers = Leases(), dict[int, str](), dict[str, int]()
        self._account, self._since = Account(), 0.0

    async def run(self) -> Account:
        for number in range(self._trace.peers):
            self._join(number % len(self._serving), fetch=0.0)
        async with asyncio.TaskGroup() as tasks:
            rebalancing = tasks.create_task(self._rebalance())
            await self._play_trace()
            rebalancing.cancel()
        return self._account

    async def _play_trace(self) -> None:
        for change in self._trace.changes(self._seed):
            await self._clock.sleep(change.moment - self._clock.now())
            self._settle()
            for _ in range(abs(change.peers)):
                self._come() if change.peers > 0 else self._strike()
        await self._clock.sleep(self._trace.seconds - self._clock.now())
        self._settle()

    def _renewed(self) -> float:
        """When those that live now last renewed their leases: all do so at the same moments."""
        every = self._policy.lease / 3
        return self._clock.now() // every * every

    def _look(self) -> None:
        """Know who is there, and how loaded.

        Every peer that serves says how busy it is; what a dead one said last stands until its lease runs out.
        """
        for name in self._alive:
            self._leases.renew(self._numbers[name], self._renewed())
        for lease in self._leases.run_out(self._clock.now()):
            for known in self._known:
                known.pop(self._names[lease], None)
        flow = min(map(len, self._serving))
        for serving, known in zip(self._serving, self._known, strict=True):
            known.update(dict.fromkeys(serving, flow / len(serving) if serving else 0.0))

    async def _rebalance(self) -> None:
        turn = 0
        while self._policy.period:
            await self._clock.sleep(pause(self._policy.period, (self._seed, turn)))
            self._look()
            for move in moves(self._known):
                self._carry_out(move.peer, move.source, move.target)
            turn += 1

    def _carry_out(self, name: str, source: int, target: int) -> None:
        if name not in self._alive:
            return  # the order is given to one that is dead
        self._settle()
        self._account.moves += 1
        del self._known[source][name]
        del self._serving[source][name]
        self._arrive(name, target, self._policy.fetch)

    def _come(self) -> None:
        if self._policy.placed:
            self._look()
            self._join(place(self._known), self._policy.fetch)
        else:
            self._join(self._draw.randrange(len(self._serving)), self._policy.fetch)

    def _join(self, stage: int, fetch: float) -> None:
        number = len(self._numbers) + 1
        name = f"peer-{number:05}"
        self._numbers[name], self._names[number] = number, name
        self._leases.add(number, self._policy.lease)
        self._leases.renew(number, self._renewed())
        self._arrive(name, stage, fetch)

    def _arrive(self, name: str, stage: int, fetch: float) -> None:
        self._alive[name], self._known[stage][name] = stage, None
        if fetch:
            self._clock.call_at(self._clock.now() + fetch, lambda: self._serve(name, stage))
        else:
            self._serve(name, stage)

    def _serve(self, name: str, stage: int) -> None:
        if self._alive.get(name) == stage:
            self._settle()
            self._serving[stage][name] = None

    def _strike(self) -> None:
        """One peer dies: of a stage drawn uniformly among those that have any, as in the paper."""
        stage = self._draw.choice([at for at in range(len(self._serving)) if at in self._alive.values()])
        name = self._draw.choice([each for each, at in self._alive.items() if at == stage])
        self._leases.renew(self._numbers[name], self._renewed())
        del self._alive[name]
        self._serving[stage].pop(name, None)

    def _settle(self) -> None:
        """Account for the time since something last changed."""
        now = self._clock.now()
        self._account.add(self._since, now, min(map(len, self._serving)), len(self._alive) / len(self._serving))
        self._since = now
