"""Pricing: what a program or a schedule costs, by running it on the virtual clock with one coroutine a worker.

The rule: a worker is busy or waits for a message, nothing else takes time. A message between two workers takes `p2p`
seconds from the end of what made it, however many are under way; on one worker it takes none.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pipelined.clock import VirtualClock, run_virtual
from pipelined.program import OPS, Program, Token
from pipelined.schedules import Layout, Schedule, ScheduleError, Shape, Worker
from pipelined.timeline import Timeline
from pipelined.virtual_worker import Bench, Demands, Post, VirtualWorker

Seconds = float | Sequence[float]
"""One number for every stage, or one a stage."""


@dataclass(frozen=True)
class Costs:
    """What one microbatch costs in one stage, in seconds, and what a message between neighbours costs."""

    forward: Seconds = 1.0
    backward: Seconds = 2.0
    backward_input: Seconds = 1.0
    backward_weight: Seconds = 1.0
    p2p: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            for seconds in [value] if isinstance(value, float | int) else value:
                if not 0 <= seconds < math.inf:
                    name = field.name.replace("_", "-")
                    raise ScheduleError(f"the cost {name}={seconds} is no duration; give finite seconds from 0 up")

    def of(self, op: str, stage: int) -> float:
        """Seconds of one instruction; op is F, B, I or W."""
        seconds = getattr(self, OPS[op])
        return float(seconds if isinstance(seconds, float | int) else seconds[stage])


def price(program: Program, costs: Costs) -> Timeline:
    """The timeline of a recorded program.

    Raises:
        clock.Deadlock: the program was not checked and deadlocks.
    Cost: about 30 µs an instruction.
    """

    async def walk(worker: Worker) -> None:
        for i in program.workers[worker.index]:
            await worker.execute(i.op, i.pipe, i.stage, i.microbatch)

    return _priced(program.layout, walk, costs)


def price_schedule(schedule: Schedule, shape: Shape, costs: Costs) -> Timeline:
    """The timeline of a schedule's own coroutines; for a static one the same as `price` of its program.

    A dynamic one is told that a message is here if it comes at this very moment, give or take a billionth.

    Raises:
        ScheduleError: the shape is refused, or a coroutine asks for what is not there.
        clock.Deadlock: the coroutines wait for one another.
    """
    return _priced(schedule.layout(shape), schedule.schedule, costs)


class _FreeLinks(Bench):
    """Every worker has a core of its own, and no message hinders another."""

    def __init__(self, p2p: float):
        self._p2p, self._clock = p2p, VirtualClock()

    async def compute(self, worker: int, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def travel(self, token: Token, source: int, target: int) -> float:
        return self._p2p if source != target else 0.0

    def send(self, token: Token, source: int, target: int) -> float:
        return self._clock.now() + self.travel(token, source, target)


def _priced(layout: Layout, walk: Callable[[Worker], Coroutine[Any, Any, None]], costs: Costs) -> Timeline:
    async def everyone() -> Timeline:
        demands = Demands(layout, lambda i: costs.of(i.op, i.stage) / layout.parts)
        post, bench = Post(), _FreeLinks(costs.p2p)
        workers = [VirtualWorker(index, layout, demands, post, bench) for index in range(layout.workers)]
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(walk(worker), name=f"worker {worker.index}")
        return Timeline(layout, tuple(tuple(worker.done) for worker in workers))

    try:
        return run_virtual(everyone())
    except ExceptionGroup as several:
        raise several.exceptions[0] from several
