"""The swarm's own actors over emulated devices, on the virtual clock and network: peers, a trainer, the directory.

What they compute means nothing; what they say to one another, and when, is what real ones say. The rule: tensors are
`SCALE` times smaller than those that are meant, and so are the lines.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._swarm_model import Work
from pipelined.clock import run_virtual
from pipelined.device import TimedDevice
from pipelined.swarm.directory import EmbeddedDirectory, serve_directory
from pipelined.swarm.processes import PeerProcess, TrainerProcess
from pipelined.swarm.rules import Rules
from pipelined.swarm.stage import Microbatch, Passed
from transports import Block
from transports.endpoints.virtual import VirtualNetwork

SCALE = 256
WARM_UP, MEASURED = 1, 1
"""Steps before the measurement, and in it."""


@dataclass(frozen=True)
class Actors:
    """A swarm of one trainer.

    Args:
        stages: the speeds of each stage's peers.
        slots: microbatches under way at once.
        batch: of a step.
        rtt: seconds there and back between any two parties.
        bandwidth: bytes a second from one party to another.
        tensor: bytes of what travels between two stages; a backward's question has two of them.
    """

    stages: Sequence[Sequence[float]]
    work: Work
    slots: int
    batch: int
    rtt: float = 0.0
    bandwidth: float = float("inf")
    tensor: float = 0.0


@dataclass(frozen=True)
class Step:
    """What a step took.

    Args:
        seconds: from one commit to the next.
        busy: seconds that devices computed forward and backward, all together.
        devices: how many there are.
    """

    seconds: float
    busy: float
    devices: int


class Relay:
    """A stage with one number for a parameter, which passes on as many numbers as it was given."""

    model = "emulated"

    def __init__(self, elements: int):
        self.sums, self._weights, self._passed = np.zeros(1), np.ones(1), np.arange(elements, dtype=np.float32)

    def expects(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        return [("float32", self._passed.shape)]

    expects_given = expects

    def forward(self, microbatch: Microbatch, inputs: Sequence[Block]) -> Sequence[Any]:
        return [self._passed]

    def backward(self, microbatch: Microbatch, inputs: Sequence[Block], given: Sequence[Block], count: bool) -> Passed:
        self.sums += count
        return Passed([self._passed], 0.0)

    def clear(self) -> None:
        self.sums[:] = 0

    def square(self, total: np.ndarray) -> float:
        return float(np.square(total).sum())

    def apply(self, step: int, total: np.ndarray, scale: float) -> None:
        self._weights += total * scale

    def state(self) -> Mapping[str, Any]:
        return {"weights": self._weights}

    def load(self, state: Mapping[str, Block]) -> None:
        self._weights[:] = state["weights"].numpy()


def step(actors: Actors) -> Step:
    """Let the swarm take its steps, and say what the last one took."""
    return run_virtual(_step(actors))


async def _step(actors: Actors) -> Step:
    delay = actors.rtt / 2
    network = VirtualNetwork(delay=delay, rate=actors.bandwidth / SCALE)
    batch, depth = actors.batch, len(actors.stages)
    rules = Rules("emulated", depth, batch, float(batch), lease_s=60.0 + 100 * delay, rebalance_s=0.0)
    elements = max(1, round(actors.tensor / SCALE / 4))
    tasks = [network.run("directory", serve_directory(network.endpoint("directory"), network.clock("directory")))]

    def client(name: str) -> tuple[Any, ...]:
        end, clock = network.endpoint(name), network.clock(name)
        return end, EmbeddedDirectory(end, "virtual://directory", clock), clock

    devices = []
    for index, speeds in enumerate(actors.stages):
        for number, speed in enumerate(speeds):
            name = f"peer-{index}-{number}"
            end, directory, clock = client(name)
            devices.append(TimedDevice(device_seconds(actors.work, index == depth - 1, speed), clock))
            peer = PeerProcess(
                name, lambda _: Relay(elements), rules, end, directory, clock, devices[-1], index, threads=False
            )
            tasks.append(network.run(name, peer.run()))
    tensor = np.arange(elements, dtype=np.float32)
    end, directory, clock = client("trainer")
    steps = WARM_UP + MEASURED
    trainer = TrainerProcess(
        "trainer", lambda _: ([tensor], [tensor]), rules, end, directory, clock, actors.slots, steps
    )
    running = network.run("trainer", trainer.run())
    try:
        await _reached(trainer, WARM_UP, running)
        start, before = clock.now(), sum(device.busy for device in devices)
        await _reached(trainer, steps, running)
        return Step(clock.now() - start, sum(device.busy for device in devices) - before, len(devices))
    finally:
        for task in (running, *tasks):
            task.cancel()
        await asyncio.gather(running, *tasks, return_exceptions=True)


def device_seconds(work: Work, last: bool, speed: float) -> dict[str, float]:
    """The last stage is asked for both passes at once."""
    backward = work.forward + work.backward if last else work.backward
    return {"forward": work.forward / speed, "backward": backward / speed}


async def _reached(trainer: TrainerProcess, step: int, running: "asyncio.Task[None]") -> None:
    roster = trainer.roster
    waiting = asyncio.ensure_future(roster.wait_for(lambda: roster.head is not None and roster.head.step >= step))
    await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
        await running
    await waiting
