"""One pipe without a flush, priced step by step without an event loop: several times as fast as `price_schedule`.

The schedule's own coroutines run here. A worker pauses where it computes or waits for a message, and goes on at
the moment when that ends; moments come in order. When a computation starts, the arrival of its message is known.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Coroutine, Generator, Sequence
from dataclasses import dataclass, replace
from types import coroutine
from typing import Any

from pipelined.aio.clock import Deadlock
from pipelined.programs.instructions import Instruction
from pipelined.programs.pricing.steady import steady_step
from pipelined.programs.pricing.timeline import Timed, Timeline
from pipelined.schedules import InstructionKey, Schedule, Shape, StageMap, Worker

Pause = float | Sequence[InstructionKey]
"""What a worker waits for: a moment, or the message of one of these instructions."""
MessageKey = tuple[str, int, int]
"""The op, stage and microbatch of the instruction that it lets start."""


@dataclass(frozen=True)
class PipeCosts:
    """The seconds of a microbatch in each of D stages, above 0, and of a message over each of the D - 1 lines between.

    However many messages are on a line, none delays another.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    lines: Sequence[float]


def price_steady_step(schedule: Schedule, shape: Shape, costs: PipeCosts) -> float:
    """Seconds of a step once the pipe is full, as `steady`; but each line has its own seconds.

    Cost: 10 to 25 µs for each instruction of 2 (K/N + 3) steps, with K microbatches alive in the first stage; seldom
    several times this number of steps.
    """
    return steady_step(lambda n: price_pipe(schedule, schedule.stage_map(replace(shape, steps=n)), costs), shape)[0]


def price_pipe(schedule: Schedule, stage_map: StageMap, costs: PipeCosts) -> Timeline:
    """The timeline of a schedule with stage s of its one pipe on worker s.

    A message that arrives at this moment, within a relative error of 1e-9, has arrived.

    Raises:
        Deadlock: the coroutines wait for one another.
    """
    return _Stepping(schedule, stage_map, costs).run()


@coroutine
def _pause(pause: Pause) -> Generator[Pause, None, None]:
    yield pause


class _Stepping:
    def __init__(self, schedule: Schedule, stage_map: StageMap, costs: PipeCosts):
        self.now, self.stage_map = 0.0, stage_map
        self.seconds = {"F": costs.forward, "B": costs.backward}
        self._lines = costs.lines
        self._arrivals: dict[MessageKey, float] = {}
        self._waiting_workers: dict[MessageKey, list[int]] = defaultdict(list)
        workers = (_SteppedWorker(index, self) for index in range(stage_map.workers))
        self._coroutines: list[Coroutine[Any, Any, None]] = [schedule.schedule(worker) for worker in workers]
        self._timed_instructions: list[list[Timed]] = [[] for _ in range(stage_map.workers)]
        self._wake_times = [0.0] * stage_map.workers
        self._moments = [(0.0, index) for index in range(stage_map.workers)]

    def run(self) -> Timeline:
        while self._moments:
            moment, index = heapq.heappop(self._moments)
            if moment == self._wake_times[index]:  # else an earlier moment came in its place
                self.now = moment
                self._resume(index)
        if math.inf in self._wake_times:
            fact = f"deadlock: worker {self._wake_times.index(math.inf)} waits for a message that never comes"
            raise Deadlock(f"{fact}; check the schedule")
        return Timeline(self.stage_map, tuple(map(tuple, self._timed_instructions)))

    def arrival(self, op: str, stage: int, microbatch: int) -> float:
        """The moment when an instruction has its message; infinite where that is not known yet."""
        return 0.0 if (op, stage) == ("F", 0) else self._arrivals.get((op, stage, microbatch), math.inf)

    def start_computation(self, op: str, stage: int, microbatch: int) -> float:
        """Let a computation start now, and its message arrive; returns its end."""
        end = self.now + self.seconds[op][stage]
        self._timed_instructions[stage].append(Timed(Instruction(op, 0, stage, microbatch), self.now, end))
        if op == "F" and stage < self.stage_map.depth - 1:
            self._send(("F", stage + 1, microbatch), end + self._lines[stage])
        elif op == "F":
            self._send(("B", stage, microbatch), end)
        elif stage > 0:
            self._send(("B", stage - 1, microbatch), end + self._lines[stage - 1])
        return end

    def _send(self, message: MessageKey, arrival: float) -> None:
        self._arrivals[message] = arrival
        for index in self._waiting_workers.pop(message, ()):
            self._wake(index, arrival)

    def _resume(self, index: int) -> None:
        self._wake_times[index] = math.inf
        try:
            pause = self._coroutines[index].send(None)
        except StopIteration:
            self._wake_times[index] = -math.inf
            return
        if isinstance(pause, float):
            self._wake(index, pause)
            return
        for op, _, stage, microbatch in pause:
            arrival = self.arrival(op, stage, microbatch)
            self._wake(index, arrival)
            if arrival == math.inf:
                self._waiting_workers[op, stage, microbatch].append(index)

    def _wake(self, index: int, moment: float) -> None:
        """Resume a worker at a moment, or at an earlier one that is set already; it may find that it has to wait on."""
        if (moment := max(moment, self.now)) < self._wake_times[index]:
            self._wake_times[index] = moment
            heapq.heappush(self._moments, (moment, index))


class _SteppedWorker(Worker):
    def __init__(self, index: int, stepping: _Stepping):
        super().__init__(index, stepping.stage_map)
        self._stepping = stepping

    async def _execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        key = (op, pipe, stage, microbatch)
        stepping = self._stepping
        while not self._has_arrived(key):
            await _pause([key])
        end = stepping.start_computation(op, stage, microbatch)
        while stepping.now < end:  # a message that it waited for before may wake it too early
            await _pause(end)

    def _has_arrived(self, key: InstructionKey) -> bool:
        op, _, stage, microbatch = key
        arrival = self._stepping.arrival(op, stage, microbatch)
        now = self._stepping.now
        return arrival <= now or math.isclose(arrival, now)

    async def _wait_for_arrival(self, choices: Sequence[InstructionKey], patience: float) -> None:
        await _pause(choices)
