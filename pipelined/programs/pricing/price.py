"""Pricing: the timeline of a program or a schedule at given costs.

A program takes one pass over its instructions. A schedule's coroutines run on the virtual clock, one per worker,
because they may query which messages have arrived.

A worker computes or waits for a message; nothing else takes time, and a gradient sum starts without delay. A message
between two workers takes `p2p` seconds from the end of the instruction that made it, however many messages are in
flight; on the same worker it takes 0.
"""

import asyncio
from collections import defaultdict, deque

from pipelined.aio.clock import Deadlock, VirtualClock, run_virtual
from pipelined.programs.costs import Costs
from pipelined.programs.instructions import Program, Token
from pipelined.programs.pricing.timeline import Timed, Timeline
from pipelined.programs.pricing.virtual_worker import CostCache, GroupMessages, Platform, VirtualWorker
from pipelined.schedules import Schedule, Shape, StageMap


def price(program: Program, costs: Costs) -> Timeline:
    """The timeline of a recorded program.

    Raises:
        clock.Deadlock: the program was not checked and deadlocks.
    Cost: one pass over the instructions, about 3 µs each.
    """
    return _Pass(program, costs).timeline()


def price_schedule(schedule: Schedule, shape: Shape, costs: Costs) -> Timeline:
    """The timeline of a schedule's own coroutines; for a static schedule the same as `price` of its program.

    For a dynamic schedule a message that arrives at this moment, within a relative error of 1e-9, has arrived.

    Raises:
        ScheduleError: the schedule refuses the shape, or a coroutine calls for an instruction that does not exist.
        clock.Deadlock: the coroutines wait for one another.
    """
    stage_map = schedule.stage_map(shape)

    async def run_workers() -> Timeline:
        messages = GroupMessages()
        platform = _FreeLinks(costs.p2p)
        cost_cache = _cost_cache(stage_map, costs)
        workers = [
            VirtualWorker(index, stage_map, cost_cache, messages, platform) for index in range(stage_map.workers)
        ]
        tasks = [asyncio.create_task(schedule.schedule(worker), name=f"worker {worker.index}") for worker in workers]
        await asyncio.gather(*tasks)  # if one fails, the loop, which runs only these tasks, cancels the others
        return Timeline(stage_map, tuple(tuple(worker.timed_instructions) for worker in workers))

    return run_virtual(run_workers())


def _cost_cache(stage_map: StageMap, costs: Costs) -> CostCache:
    costs.require_stages(stage_map.depth)
    return CostCache(stage_map, lambda i: costs.seconds(i.op, i.stage) / stage_map.pieces)


class _Pass:
    """The longest paths through a program: a worker proceeds until a message is missing, then again once it is made."""

    def __init__(self, program: Program, costs: Costs):
        self._program = program
        self._p2p = costs.p2p
        self._costs = _cost_cache(program.stage_map, costs)
        self._timed_instructions: list[list[Timed]] = [[] for _ in program.workers]
        self._arrivals: dict[Token, float] = {}
        self._waiting_workers: dict[Token, list[int]] = defaultdict(list)
        self._ready_workers = deque(range(len(program.workers)))

    def timeline(self) -> Timeline:
        while self._ready_workers:
            self._advance(self._ready_workers.popleft())
        for token, workers in self._waiting_workers.items():
            raise Deadlock(f"deadlock: worker {workers[0]} waits for {token}, which never comes; check the program")
        return Timeline(self._program.stage_map, tuple(map(tuple, self._timed_instructions)))

    def _advance(self, worker: int) -> None:
        timed_instructions = self._timed_instructions[worker]
        arrivals = self._arrivals
        now = timed_instructions[-1].end if timed_instructions else 0.0
        instructions = self._program.workers[worker]
        for position in range(len(timed_instructions), len(instructions)):  # a slice would copy the rest in every call
            instruction, takes, gives, seconds = self._costs[instructions[position].key]
            for token in takes:
                if token not in arrivals:
                    self._waiting_workers[token].append(worker)
                    return
                now = max(now, arrivals[token])
            timed_instructions.append(Timed(instruction, now, now + seconds))
            now += seconds
            for token, target in gives:
                arrivals.setdefault(token, now if target == worker else now + self._p2p)
                self._ready_workers.extend(self._waiting_workers.pop(token, ()))


class _FreeLinks(Platform):
    """Every worker has a core of its own, and no message delays another."""

    def __init__(self, p2p: float):
        self._p2p = p2p
        self._clock = VirtualClock()

    async def compute(self, worker: int, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def travel(self, token: Token, source: int, target: int) -> float:
        return self._p2p if source != target else 0.0

    def send(self, token: Token, source: int, target: int) -> float:
        return self._clock.now() + self.travel(token, source, target)
