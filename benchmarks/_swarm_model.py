"""A swarm of emulated devices behind slow links, on the virtual clock, wired by the real wiring.

Every question goes from the trainer to a peer and back: the message travels, passes the peer's own line, waits for
its device, is computed, and the answer passes the line the other way and travels back. The rule: a device and each
direction of a line do one thing at a time, in the order of arrival. No values are computed, and the trainer's own line
is free.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pipelined.clock import VirtualClock, run_virtual
from pipelined.swarm.answer_times import Pass
from pipelined.swarm.wiring import Wiring
from transports.endpoints import Party

Delay = Callable[[], float]
"""Seconds that the next message travels."""


@dataclass(frozen=True)
class Work:
    """What a microbatch costs at a stage.

    Args:
        forward, backward: seconds of a device of speed 1.
        forward_bytes, backward_bytes: of a question and of its answer.
    """

    forward: float
    backward: float
    forward_bytes: tuple[float, float] = (0.0, 0.0)
    backward_bytes: tuple[float, float] = (0.0, 0.0)

    @property
    def seconds(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True)
class Setting:
    """A swarm.

    Args:
        stages: the speeds of each stage's peers.
        bandwidth: bytes a second, each way, of every peer's line.
        in_flight: microbatches that the trainer keeps under way.
        microbatches: of the batch.
    """

    stages: Sequence[Sequence[float]]
    work: Work
    bandwidth: float = float("inf")
    in_flight: int = 1
    microbatches: int = 100


@dataclass
class Taken:
    """What a batch took.

    Args:
        seconds: from the first question to the last answer.
        busy: seconds that each device computed, by stage.
        served: questions that each peer answered, by stage.
    """

    seconds: float = 0.0
    busy: list[list[float]] = field(default_factory=list)
    served: list[list[int]] = field(default_factory=list)

    @property
    def utilisation(self) -> float:
        """Of all devices."""
        devices = [seconds for stage in self.busy for seconds in stage]
        return sum(devices) / len(devices) / self.seconds


class _Line:
    """Something that does one thing at a time."""

    def __init__(self, clock: VirtualClock):
        self._clock, self._free, self.busy = clock, 0.0, 0.0

    async def take(self, seconds: float) -> None:
        now = self._clock.now()
        self._free = max(now, self._free) + seconds
        self.busy += seconds
        if self._free > now:
            await self._clock.sleep(self._free - now)


class _Peer:
    def __init__(self, speed: float, setting: Setting, clock: VirtualClock):
        self._speed, self._setting, self.served = speed, setting, 0
        self.device, self._down, self._up = _Line(clock), _Line(clock), _Line(clock)

    async def answer(self, which: Pass) -> None:
        work, bandwidth = self._setting.work, self._setting.bandwidth
        seconds, (asked, answered) = {
            "forward": (work.forward, work.forward_bytes),
            "backward": (work.backward, work.backward_bytes),
        }[which]
        await self._down.take(asked / bandwidth)
        await self.device.take(seconds / self._speed)
        await self._up.take(answered / bandwidth)
        self.served += 1


class _Trainer:
    def __init__(self, setting: Setting, delay: Delay):
        self._setting, self._delay, self._clock = setting, delay, VirtualClock()
        self._wiring = Wiring(len(setting.stages))
        self._peers: list[dict[str, _Peer]] = []
        for stage, speeds in enumerate(setting.stages):
            self._peers.append({f"{stage}/{at}": _Peer(each, setting, self._clock) for at, each in enumerate(speeds)})
            for address in self._peers[stage]:
                self._wiring.add(stage, Party(address, 1))

    async def run(self) -> Taken:
        waiting = iter(range(self._setting.microbatches))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._setting.in_flight):
                tasks.create_task(self._pass_all(waiting))
        busy = [[peer.device.busy for peer in stage.values()] for stage in self._peers]
        served = [[peer.served for peer in stage.values()] for stage in self._peers]
        return Taken(self._clock.now(), busy, served)

    async def _pass_all(self, waiting: Iterator[int]) -> None:
        for _ in waiting:
            for stage in range(len(self._peers)):
                await self._ask(stage, "forward")
            for stage in reversed(range(len(self._peers))):
                await self._ask(stage, "backward")

    async def _ask(self, stage: int, which: Pass) -> None:
        asked = self._clock.now()
        party = self._wiring.pick(stage, which, asked)
        assert party is not None, "nobody is ever banned here"
        await self._clock.sleep(self._delay())
        await self._peers[stage][party.address].answer(which)
        await self._clock.sleep(self._delay())
        self._wiring.observe(party, which, self._clock.now() - asked)


def batch(setting: Setting, delay: Delay = lambda: 0.0) -> Taken:
    """Pass a batch through the swarm, forward and backward."""
    return run_virtual(_Trainer(setting, delay).run())
