"""The parties of a swarm over emulated devices and shaped lines, on the virtual clock: peers, trainers, the directory.

What they compute means nothing; what they say to one another, and when, is what real ones say. The rule: tensors may
be `scale` times smaller than those that are meant, and then the lines are so, too. Every peer has one line, which all
share that it talks with; trainers and the directory have lines that are never full. No work is given before all
peers serve.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks._swarm_devices import Counted, Relay, device_seconds, hold_back, take_time_to_code
from benchmarks._swarm_setting import Actors, Step
from pipelined.swarm.directory import EmbeddedDirectory, serve_directory
from pipelined.swarm.membership import Roster
from pipelined.swarm.processes import PeerProcess, TrainerProcess
from pipelined.swarm.rules import Rules
from pipelined.swarm.stage import Microbatch
from transports.endpoints.virtual import VirtualNetwork


@dataclass(frozen=True)
class Look:
    """At a moment: seconds that devices have computed, and answers that trainers have had, by peer."""

    moment: float
    busy: float
    answers: Counter[str]


class Training:
    """The parties of a swarm that trains, on the running loop."""

    def __init__(self, actors: Actors):
        self._actors, self._depth = actors, len(actors.stages)
        self._network = VirtualNetwork(delay=actors.rtt / 2, jitter=actors.jitter)
        self._rules = Rules(
            "emulated",
            self._depth,
            actors.batch,
            float(actors.batch),
            lease_s=60.0 + 100 * actors.rtt,
            rebalance_s=0.0,
            codec=actors.codec,
            sums_codec=actors.sums_codec,
        )
        self._outside, self._begun, self._more = actors.outside, 0, asyncio.Event()
        self._devices, self._trainers = list[Counted](), list[TrainerProcess]()
        self.tasks, self._names = list[asyncio.Task[Any]](), list[str]()
        directory, clock = self._network.endpoint("directory"), self._network.clock("directory")
        self._run("directory", serve_directory(directory, clock))
        for stage, speeds in enumerate(actors.stages):
            for number, speed in enumerate(speeds):
                self._add_peer(f"peer-{stage}-{number}", stage, speed)
        for number in range(actors.trainers):
            self._add_trainer(f"trainer-{number}")

    async def stands(self, step: int) -> None:
        """Wait until the swarm has taken so many steps."""
        roster = self._trainers[0].roster
        await self._while_alive(roster.wait_for(lambda: roster.head is not None and roster.head.step >= step))

    async def begun(self, microbatches: int) -> None:
        """Wait until trainers have begun so many."""
        while self._begun < microbatches:
            self._more.clear()
            await self._while_alive(self._more.wait())

    def look(self) -> Look:
        answers = sum((each.trainer.answers for each in self._trainers), Counter[str]())
        return Look(asyncio.get_running_loop().time(), sum(device.worked for device in self._devices), answers)

    def since(self, before: Look) -> Step:
        now, ended = self.look(), max(device.ended for device in self._devices)
        return Step(
            seconds=now.moment - before.moment,
            passes=ended - before.moment,
            busy=now.busy - before.busy,
            devices=len(self._devices),
            answers=now.answers - before.answers,
        )

    async def end(self) -> None:
        """Kill them all: who ended in order would tell the directory, and wait until that had answered."""
        for name in self._names:
            self._network.kill(name)
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _add_peer(self, name: str, stage: int, speed: float) -> None:
        actors, ends = self._actors, (stage == 0, stage == self._depth - 1)
        self._network.line(name, actors.bandwidth / actors.scale)
        endpoint, directory, clock = self._client(name)
        if actors.codec:
            take_time_to_code(endpoint, clock, actors.coding, actors.scale)
        device, sums = (
            Counted(device_seconds(actors.work, ends[1], speed), clock),
            round(actors.sums / 4 / actors.scale),
        )
        build = lambda _: Relay(actors.elements, self._outside, ends, max(1, sums))  # noqa: E731
        self._devices.append(device)
        process = PeerProcess(name, build, self._rules, endpoint, directory, clock, device, stage, threads=False)
        self._run(name, process.run())

    def _add_trainer(self, name: str) -> None:
        endpoint, directory, clock = self._client(name)
        trainer = TrainerProcess(name, self._data, self._rules, endpoint, directory, clock, self._actors.slots)
        hold_back(endpoint, "work", lambda: trainer.roster.wait_for(lambda: self._all_serve(trainer.roster)))
        self._trainers.append(trainer)
        self._run(name, trainer.run())

    def _all_serve(self, roster: Roster) -> bool:
        return all(len(roster.serving(at)) == len(speeds) for at, speeds in enumerate(self._actors.stages))

    def _client(self, name: str) -> tuple[Any, ...]:
        endpoint, clock = self._network.endpoint(name), self._network.clock(name)
        return endpoint, EmbeddedDirectory(endpoint, "virtual://directory", clock), clock

    def _data(self, microbatch: Microbatch) -> tuple[Sequence[Any], Sequence[Any]]:
        self._begun += 1
        self._more.set()
        return [self._outside], [self._outside]

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._names.append(name)
        self.tasks.append(self._network.run(name, work))

    async def _while_alive(self, wait: Coroutine[Any, Any, Any]) -> None:
        """Raises: what ended any of the parties meanwhile."""
        waiting = asyncio.ensure_future(wait)
        await asyncio.wait([waiting, *self.tasks], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await next(task for task in self.tasks if task.done())
        await waiting


@asynccontextmanager
async def training(actors: Actors) -> AsyncIterator[Training]:
    """Let a swarm train for as long as the block runs."""
    swarm = Training(actors)
    try:
        yield swarm
    finally:
        await swarm.end()
