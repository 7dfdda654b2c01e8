"""The parties of a swarm over emulated devices and shaped lines, on the virtual clock: peers, trainers, the directory.

Their computations mean nothing; their messages, and the order of these, are those of real ones. Tensors may be `scale`
times smaller than the emulated ones, over lines slower by the same factor. Every peer has one line, which all its
connections share; trainers and the directory have lines that are never full. No work is given before all peers serve.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.swarm.devices import Counted, Relay, device_seconds, hold_back, take_time_to_code
from benchmarks.swarm.setting import Actors, Step
from pipelined.aio.clock import Clock
from pipelined.membership.directory.client.retry import PATIENCE_S
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from pipelined.swarm.stages.swarm_stage import Microbatch
from tests.swarm.virtual_parties import VirtualParties
from transports.rpc.virtual.network import VirtualNetwork

MIN_CHUNK = 8
"""Bytes of a chunk of a sum that is played as small as can be."""


@dataclass(frozen=True)
class Look:
    """At a moment: seconds that devices have computed, and answers that trainers have had, by peer."""

    moment: float
    busy: float
    answers: Counter[str]


class Training(VirtualParties):
    """The parties of a swarm that trains, on the running loop."""

    def __init__(self, actors: Actors):
        self._actors, self._depth = actors, len(actors.stages)
        network = VirtualNetwork(delay=actors.rtt / 2, jitter=actors.jitter, scale=actors.scale)
        super().__init__(network, _rules(actors), PATIENCE_S)
        self._outside, self._begun, self._more = actors.outside, 0, asyncio.Event()
        self.start_directory()
        for stage, speeds in enumerate(actors.stages):
            for number, speed in enumerate(speeds):
                self._add_peer(f"peer-{stage}-{number}", stage, speed)
        for number in range(actors.trainers):
            self._add_trainer(f"trainer-{number}")

    async def stands(self, step: int) -> None:
        """Wait until the swarm has taken so many steps."""
        view = next(iter(self.trainers.values())).view
        await self._while_alive(view.wait_for(lambda: view.head is not None and view.head.step >= step))

    async def begun(self, microbatches: int) -> None:
        """Wait until trainers have begun so many."""
        while self._begun < microbatches:
            self._more.clear()
            await self._while_alive(self._more.wait())

    def look(self) -> Look:
        answers = sum((each.trainer.pool.replies for each in self.trainers.values()), Counter[str]())
        return Look(asyncio.get_running_loop().time(), sum(device.worked for device in self.devices.values()), answers)

    def since(self, before: Look, steps: int = 1) -> Step:
        """What each of so many steps took on average."""
        now, ended = self.look(), max(device.ended for device in self.devices.values())
        return Step(
            seconds=(now.moment - before.moment) / steps,
            passes=(ended - before.moment) / steps,
            busy=(now.busy - before.busy) / steps,
            devices=len(self.devices),
            answers=now.answers - before.answers,
        )

    def device(self, seconds: Mapping[str, float], clock: Clock) -> Counted:
        return Counted(seconds, clock)

    def _add_peer(self, name: str, stage: int, speed: float) -> None:
        actors, ends = self._actors, (stage == 0, stage == self._depth - 1)
        self.network.set_access_rate(name, actors.bandwidth / actors.scale)
        sums = max(1, round(actors.sums / 4 / actors.scale))
        build = lambda _: Relay(actors.elements, self._outside, ends, sums)  # noqa: E731
        self.start_peer(name, build, device_seconds(actors.work, ends[1], speed), stage)
        if actors.codec:
            take_time_to_code(self.endpoints[name], self.clock(name), actors.coding, actors.scale)

    def _add_trainer(self, name: str) -> None:
        view = self.start_trainer(name, self._data, self._actors.slots).view
        hold_back(self.endpoints[name], "work", lambda: view.wait_for(lambda: self._all_serve(view)))

    def _all_serve(self, view: SwarmView) -> bool:
        return all(len(view.serving(at)) == len(speeds) for at, speeds in enumerate(self._actors.stages))

    def _data(self, microbatch: Microbatch) -> tuple[Sequence[Any], Sequence[Any]]:
        self._begun += 1
        self._more.set()
        return [self._outside], [self._outside]

    async def _while_alive(self, wait: Coroutine[Any, Any, Any]) -> None:
        """Raises: what ended any of the parties meanwhile."""
        waiting = asyncio.ensure_future(wait)
        await asyncio.wait([waiting, *self.tasks.values()], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await next(task for task in self.tasks.values() if task.done())
        await waiting


def _rules(actors: Actors) -> Rules:
    return Rules(
        "emulated",
        len(actors.stages),
        actors.batch,
        float(actors.batch),
        lease_s=60.0 + 100 * actors.rtt,
        rebalance_s=0.0,
        codec=actors.codec,
        sums_codec=actors.sums_codec,
        chunk_bytes=max(MIN_CHUNK, round(actors.piece / actors.scale)),
        delayed=actors.delayed,
    )


@asynccontextmanager
async def training(actors: Actors) -> AsyncIterator[Training]:
    """Let a swarm train for as long as the block runs."""
    swarm = Training(actors)
    try:
        yield swarm
    finally:
        await swarm.close()
