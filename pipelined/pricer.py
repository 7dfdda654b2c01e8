"""Pricing: what a program or a schedule costs, by running it on the virtual clock with one coroutine a worker.

The rule: a worker is busy or waits for a message, nothing else takes time. A message between two workers takes `p2p`
seconds from the end of what made it, however many are under way; on one worker it takes none.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pipelined.clock import VirtualClock, run_virtual
from pipelined.program import OPS, Instruction, Program, Token
from pipelined.schedules import Layout, Schedule, ScheduleError, Shape, Worker
from pipelined.timeline import Timed, Timeline

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


class _Post:
    """What has been left by whom and when, for whoever waits for it, and what is being made and will be done when."""

    def __init__(self) -> None:
        self._left: dict[Token, asyncio.Future[tuple[int, float]]] = defaultdict(asyncio.Future)
        self._due: dict[Token, tuple[int, float]] = {}

    def announce(self, token: Token, worker: int, end: float) -> None:
        self._due[token] = worker, end

    def due(self, token: Token) -> tuple[int, float]:
        """Who makes it and when that is done: never, as far as can be known now, if nobody has begun."""
        return self._due.get(token, (-1, math.inf))

    def leave(self, token: Token, worker: int, now: float) -> None:
        if not self._left[token].done():
            self._left[token].set_result((worker, now))

    async def take(self, token: Token) -> tuple[int, float]:
        return await self._left[token]


class _PricingWorker(Worker):
    """Charges the virtual clock for each instruction, and writes down when it ran."""

    def __init__(self, index: int, layout: Layout, costs: Costs, post: _Post):
        super().__init__(index, layout)
        self.done: list[Timed] = []
        self._costs, self._post, self._clock = costs, post, VirtualClock()

    async def execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        instruction, depth = Instruction(op, pipe, stage, microbatch), self.layout.depth
        for token in instruction.takes(depth):
            await self._arrival(token)
        start, seconds = self._clock.now(), self._costs.of(op, stage) / self.layout.parts
        for token in instruction.gives(depth):
            self._post.announce(token, self.index, start + seconds)
        await self._clock.sleep(seconds)
        self.done.append(Timed(instruction, start, self._clock.now()))
        for token in instruction.gives(depth):
            self._post.leave(token, self.index, self._clock.now())

    def arrived(self, op: str, pipe: int, stage: int, microbatch: int) -> bool:
        return all(map(self._here, Instruction(op, pipe, stage, microbatch).takes(self.layout.depth)))

    def _here(self, token: Token) -> bool:
        """What ends elsewhere at this moment is announced already, though its worker may be run after this one."""
        sender, end = self._post.due(token)
        arrival, now = end + self._costs.p2p * (sender != self.index), self._clock.now()
        return arrival <= now or math.isclose(arrival, now)

    async def _arrival(self, token: Token) -> None:
        sender, sent = await self._post.take(token)
        wait = sent + self._costs.p2p - self._clock.now()
        if sender != self.index and wait > 0:
            await self._clock.sleep(wait)


def _priced(layout: Layout, walk: Callable[[Worker], Coroutine[Any, Any, None]], costs: Costs) -> Timeline:
    async def everyone() -> Timeline:
        post = _Post()
        workers = [_PricingWorker(index, layout, costs, post) for index in range(layout.workers)]
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(walk(worker), name=f"worker {worker.index}")
        return Timeline(layout, tuple(tuple(worker.done) for worker in workers))

    try:
        return run_virtual(everyone())
    except ExceptionGroup as several:
        raise several.exceptions[0] from several
