"""A small training job in which one rank fails on purpose: `mpirun -n 4 python -m tests.chaos.faulty raise 2 3`.

It has every part of a real job but the text: launcher, transport, schedule, trainer. The fault strikes inside a
forward, where a user's model would.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import torch

from pipelined.process.exit import FAILED, end_process
from pipelined.process.launch import detect
from pipelined.process.run import run
from pipelined.random.keyed_random import KeyedRandom
from pipelined.training.stages.stage import Stage
from tests.conformance.worlds import kill
from tests.numerics.plain import Case
from tests.numerics.trained import opened
from transports import Closed, Transport

CASE = Case("chimera", depth=4, width=1, microbatches=4)


class Fault(StrEnum):
    """How a rank can fail."""

    RAISE = "raise"
    """An exception in the model."""
    KILL = "kill"
    """SIGKILL, as the kernel sends it when memory runs out."""
    EXIT = "exit"
    """The process ends itself without a word."""
    DIE = "die"
    """The transport's simulated death, where ranks share a process."""


class Struck:
    """A stage with a fault in the forward of a given step."""

    def __init__(self, stage: Stage, step: int, strike: Callable[[], None]):
        self._stage, self._step, self._strike = stage, step, strike

    def forward(self, which: tuple[int, int], x: Any, random: KeyedRandom, targets: Any = None) -> Any:
        if random.step == self._step:
            self._strike()
        return self._stage.forward(which, x, random, targets)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)


def striker(fault: Fault, transport: Transport) -> Callable[[], None]:
    """What the fault does, from the device's thread."""
    loop = asyncio.get_running_loop()

    def strike() -> None:
        print(f"struck at {time.time()}", flush=True)
        match fault:
            case Fault.RAISE:
                raise ArithmeticError("the model blew up")
            case Fault.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Fault.EXIT:
                os._exit(7)
            case Fault.DIE:
                asyncio.run_coroutine_threadsafe(_die(transport), loop).result()

    return strike


async def _die(transport: Any) -> None:
    kill(transport)


async def job(transport: Transport, fault: Fault, rank: int, step: int) -> int:
    """One rank, which trains until the fault; a dead one says nothing."""
    try:
        return await train(transport, fault, rank, step)
    except Closed:
        if fault is Fault.DIE and transport.rank == rank:
            return FAILED
        raise


async def train(transport: Transport, fault: Fault, rank: int, step: int) -> int:
    """One rank, which trains for ever."""
    async with opened(transport, CASE.job()) as trainer:
        if transport.rank == rank:
            strike = striker(fault, transport)
            stages = trainer.context.stages
            stages.update({number: Struck(stage, step, strike) for number, stage in stages.items()})
        number = 0
        while True:
            await trainer.step(number)
            number += 1


def main(fault: str, rank: str, step: str) -> int:
    """Run the job wherever it was launched."""
    torch.set_num_threads(1)
    faulty = (Fault(fault), int(rank), int(step))
    plan = CASE.plan
    return run(detect(os.environ), plan.world_size, lambda transport: job(transport, *faulty), plan.stages_of)


if __name__ == "__main__":
    end_process(main(*sys.argv[1:]))
