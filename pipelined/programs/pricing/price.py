"""Pricing: the timeline of a program or a schedule at given costs.

A program takes one pass over its instructions. A schedule's coroutines run on the virtual clock, one per worker,
because they may query which messages have arrived.

A worker computes or waits for a message; nothing else takes time, and a gradient sum starts without delay. A message
between two workers takes `p2p` seconds from the end of the instruction that made it, however many messages are in
flight; on the same worker it takes 0.
"""

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from pipelined.aio.clock import Deadlock, VirtualClock, run_virtual
from pipelined.errors import require_number
from pipelined.programs.instructions import OP_NAMES, Program, Token
from pipelined.programs.pricing.timeline import Timed, Timeline
from pipelined.programs.pricing.virtual_worker import Demands, GroupMessages, Platform, VirtualWorker
from pipelined.schedules import Schedule, ScheduleError, Shape, StageMap

PerStage = float | Sequence[float]
"""One number for all stages, or one per stage."""


@dataclass(frozen=True)
class Costs:
    """The seconds of each instruction of one microbatch in one stage, and of a message between neighbours.

    If no input half is given it is half of the backward; if no weight half is given, the rest. The fields then hold
    these numbers.
    """

    forward: PerStage = 1.0
    backward: PerStage = 2.0
    backward_input: PerStage | None = None
    backward_weight: PerStage | None = None
    p2p: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            per_stage = field.name != "p2p" and isinstance(value, Sequence) and not isinstance(value, str)
            for seconds in value if per_stage else [value]:
                require_number(f"the cost {field.name.replace('_', '-')}", seconds)
                if not 0 <= seconds < math.inf:
                    name = field.name.replace("_", "-")
                    raise ScheduleError(f"the cost {name} must be finite seconds from 0 up (got: {seconds})")
        given = self.backward, self.backward_input, self.backward_weight
        if self.backward_input is None:
            object.__setattr__(self, "backward_input", _by_stage(lambda *of: halves(*of)[0], *given))
        if self.backward_weight is None:
            object.__setattr__(self, "backward_weight", _by_stage(lambda *of: halves(*of)[1], *given))

    def require_stages(self, depth: int) -> None:
        """Raises ScheduleError: a cost is given by stage, but not for each of `depth` stages."""
        for name, value in vars(self).items():
            if isinstance(value, Sequence) and len(value) != depth:
                fact = f"the cost {name.replace('_', '-')} is for other stages (stages with a cost: {len(value)}"
                raise ScheduleError(f"{fact}, depth: {depth}); give one number, or one for each stage")

    def of(self, op: str, stage: int) -> float:
        """Seconds of one computation; op is F, B, I or W."""
        seconds = getattr(self, OP_NAMES[op])
        return float(seconds if isinstance(seconds, float | int) else seconds[stage])

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)

    @classmethod
    def parse(cls, document: Any, depth: int) -> "Costs":
        """Costs from the JSON of `to_dict`, which may be damaged.

        Raises:
            TypeError: a field is missing, unknown, or no number and no list of one number for each of `depth` stages.
            ScheduleError: a number is not a duration.
        """
        names = {field.name for field in fields(cls)}
        if type(document) is not dict or set(document) != names:
            raise TypeError(f"costs is {document!r} and should have {', '.join(sorted(names))}")
        for name, value in document.items():
            every = value if type(value) is list and name != "p2p" else [value] * depth
            if len(every) != depth or any(type(seconds) not in (int, float) for seconds in every):
                raise TypeError(f"the cost {name} is {value!r} and should be one number, or one for each stage")
        return cls(**document)


def halves(backward: float, backward_input: float | None, backward_weight: float | None) -> tuple[float, float]:
    """Seconds of both halves of a backward; None: open. Raises ScheduleError: nothing is left for an open one."""
    half = backward / 2 if backward_input is None else backward_input
    if backward_weight is None and half and half >= backward:
        fact = f"the input half takes all of the backward (half: {half}, whole: {backward})"
        raise ScheduleError(f"{fact}; give the weight half's seconds too, or a longer backward")
    return half, backward - half if backward_weight is None else backward_weight


def _by_stage(of_stage: Callable[..., float], *costs: PerStage | None) -> PerStage:
    """One number for all stages, or, where a cost is by stage, one for each."""
    if not (depths := [len(cost) for cost in costs if isinstance(cost, Sequence)]):
        return of_stage(*costs)
    rows = (cost if isinstance(cost, Sequence) else [cost] * max(depths) for cost in costs)
    return [of_stage(*row) for row in zip(*rows, strict=False)]  # `require_stages` refuses lists of other lengths


DEFAULT_COSTS = Costs()
"""Costs where none are given: a backward does twice the work of a forward, its halves share that, messages are free."""


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

    async def everyone() -> Timeline:
        messages = GroupMessages()
        platform = _FreeLinks(costs.p2p)
        demands = _demands(stage_map, costs)
        workers = [VirtualWorker(index, stage_map, demands, messages, platform) for index in range(stage_map.workers)]
        running = [asyncio.create_task(schedule.schedule(worker), name=f"worker {worker.index}") for worker in workers]
        await asyncio.gather(*running)  # if one fails, the loop, which runs only these tasks, cancels the others
        return Timeline(stage_map, tuple(tuple(worker.done) for worker in workers))

    return run_virtual(everyone())


def _demands(stage_map: StageMap, costs: Costs) -> Demands:
    costs.require_stages(stage_map.depth)
    return Demands(stage_map, lambda i: costs.of(i.op, i.stage) / stage_map.pieces)


class _Pass:
    """The longest paths through a program: a worker proceeds until a message is missing, then again once it is made."""

    def __init__(self, program: Program, costs: Costs):
        self._program = program
        self._p2p = costs.p2p
        self._demands = _demands(program.stage_map, costs)
        self._done: list[list[Timed]] = [[] for _ in program.workers]
        self._arrivals: dict[Token, float] = {}
        self._waiting: dict[Token, list[int]] = defaultdict(list)
        self._ready = deque(range(len(program.workers)))

    def timeline(self) -> Timeline:
        while self._ready:
            self._go_on(self._ready.popleft())
        for token, workers in self._waiting.items():
            raise Deadlock(f"deadlock: worker {workers[0]} waits for {token}, which never comes; check the program")
        return Timeline(self._program.stage_map, tuple(map(tuple, self._done)))

    def _go_on(self, worker: int) -> None:
        done = self._done[worker]
        arrivals = self._arrivals
        now = done[-1].end if done else 0.0
        instructions = self._program.workers[worker]
        for position in range(len(done), len(instructions)):  # a slice would copy the rest in every call
            i = instructions[position]
            instruction, takes, gives, seconds = self._demands[i.op, i.pipe, i.stage, i.microbatch]
            for token in takes:
                if token not in arrivals:
                    self._waiting[token].append(worker)
                    return
                now = max(now, arrivals[token])
            done.append(Timed(instruction, now, now + seconds))
            now += seconds
            for token, target in gives:
                arrivals.setdefault(token, now if target == worker else now + self._p2p)
                self._ready.extend(self._waiting.pop(token, ()))


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
