"""Recording: run a schedule's coroutines with workers that only write down what they are told.

The rule: a recorded schedule waits for nothing, so no event loop, clock or device is needed, and this can be called
from anywhere, a running loop included. Only one that asks whether messages have come needs a clock for the answers, the
virtual one.
"""

from collections.abc import Coroutine, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pipelined.aio.clock import Deadlock
from pipelined.programs.check import check
from pipelined.programs.instructions import OPS, Instruction, Program
from pipelined.programs.price import Costs, price_schedule
from pipelined.schedules import Schedule, ScheduleError, Shape, StageMap, Worker
from pipelined.schedules.bounded import bounded
from pipelined.schedules.own import attempted


def record(schedule: Schedule, shape: Shape, costs: Costs | None = None) -> Program:
    """The program of a schedule for a shape. It is not checked: see `checker.check`.

    A dynamic schedule, which asks `Worker.ready`, is recorded twice: with every message in time, and on the virtual
    clock, which gives the program. Both must agree on the order of F, B and I. Where a loop is running, call this
    through `asyncio.to_thread` if the schedule may be a dynamic one.

    Args:
        costs: by which a dynamic schedule's messages come, unit costs if none; a static one has no use for them.
    Raises:
        ScheduleError: the shape is refused; the coroutine asks for what is not there, waits, or does not end; or a
            dynamic schedule is wrong with every message in time, or lets timing change more than its weight halves
            (an asynchronous one: more than which of its forwards and backwards comes first).
    """
    layout = schedule.layout(shape)
    if shape.steps != 1 and layout.updates is None:
        fact = f"{schedule.__name__.rpartition('.')[2]} flushes behind every step (steps: {shape.steps})"
        raise ScheduleError(f"{fact}; use --steps 1, or an asynchronous schedule")
    program, asked = _in_time(schedule, layout)
    if not asked:
        return program
    check(program)
    return _traced(schedule, shape, costs or Costs(), program)


def in_time(schedule: Schedule, layout: StageMap) -> Program:
    """What a schedule does if it finds every message there: of one with a flush, where weight halves wait longest.

    Nothing else holds up what comes next there, so a weight half runs when the schedule's own cap asks for it, or last.
    """
    return _in_time(schedule, layout)[0]


class _RecordingWorker(Worker):
    """Writes instructions down, up to a number that no right program exceeds."""

    def __init__(self, index: int, layout: StageMap):
        super().__init__(index, layout)
        self.written: list[Instruction] = []
        self.asked = False
        self.most = sum(len(OPS) * len(layout.microbatches[pipe]) for pipe, _ in layout.held_by(index))

    async def execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        if len(self.written) == self.most:
            fact = f"worker {self.index} does not stop (instructions: {self.most})"
            raise ScheduleError(f"{fact}; each microbatch needs one F and one B, or F, I and W, of a stage")
        self.written.append(Instruction(op, pipe, stage, microbatch))

    def arrived(self, op: str, pipe: int, stage: int, microbatch: int) -> bool:
        self.asked = True
        return True


def _in_time(schedule: Schedule, layout: StageMap) -> tuple[Program, bool]:
    """And whether it asked for messages."""
    workers = [_recorded(schedule, layout, index) for index in range(layout.workers)]
    return Program(layout, tuple(tuple(worker.written) for worker in workers)), any(worker.asked for worker in workers)


def _recorded(schedule: Schedule, layout: StageMap, index: int) -> _RecordingWorker:
    worker = _RecordingWorker(index, layout)
    with _bounded(schedule, f"the schedule of worker {index}", worker.most):
        attempted(
            f"the schedule of worker {index} fails", lambda: _run_without_waiting(schedule.schedule(worker), index)
        )
    return worker


def _bounded(schedule: Schedule, what: str, instructions: int) -> AbstractContextManager[None]:
    """A bound on what a user's schedule runs; those of this project end, and are not slowed down."""
    ours = schedule.__name__.startswith("pipelined.")
    return nullcontext() if ours else bounded(what, instructions)


def _traced(schedule: Schedule, shape: Shape, costs: Costs, in_time: Program) -> Program:
    """What a dynamic schedule does at these costs, given what it does with every message in time."""
    rule = "let what `ready` says change only when weight halves run"
    try:
        with _bounded(schedule, "the schedule", len(OPS) * sum(map(len, in_time.workers))):
            trace = price_schedule(schedule, shape, costs).program
    except Deadlock as error:
        raise ScheduleError(f"the schedule deadlocks where messages come late; {rule}") from error
    for worker, (early, late) in enumerate(zip(in_time.workers, trace.workers, strict=True)):
        if _fixed(in_time, early) != _fixed(trace, late):
            fact = f"worker {worker} does not keep its order of F, B and I where messages come late"
            raise ScheduleError(f"{fact}; {rule}")
    return trace


def _fixed(program: Program, instructions: Iterable[Instruction]) -> list[Instruction]:
    """What timing must not change: of an asynchronous schedule, the order of forwards, and that of backwards."""
    fixed = skeleton(instructions)
    return fixed if program.layout.updates is None else sorted(fixed, key=lambda instruction: instruction.op)


def skeleton(instructions: Iterable[Instruction]) -> list[Instruction]:
    """What others wait for, in order: all but the weight halves, for which nobody else does."""
    return [instruction for instruction in instructions if instruction.op != "W"]


def _run_without_waiting(coroutine: Coroutine[Any, Any, None], index: int) -> None:
    if not isinstance(coroutine, Coroutine):
        raise ScheduleError(f"the schedule of worker {index} is no coroutine (but {coroutine!r}); write async def")
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise ScheduleError(f"the schedule of worker {index} waits for something; let it await its worker's verbs only")
