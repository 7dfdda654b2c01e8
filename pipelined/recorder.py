"""Recording: run a schedule's coroutines with workers that only write down what they are told.

The rule: a recorded schedule waits for nothing, so no event loop, clock or device is needed, and this can be called
from anywhere, a running loop included.
"""

from collections.abc import Coroutine
from typing import Any

from pipelined.program import OPS, Instruction, Program
from pipelined.schedules import Layout, Schedule, ScheduleError, Shape, Worker


def record(schedule: Schedule, shape: Shape) -> Program:
    """The program of a schedule for a shape. It is not checked: see `checker.check`.

    Raises:
        ScheduleError: the shape is refused, or the coroutine asks for what is not there, waits, or does not end.
    """
    layout = schedule.layout(shape)
    return Program(layout, tuple(_recorded(schedule, layout, index) for index in range(layout.workers)))


class _RecordingWorker(Worker):
    """Writes instructions down, up to a number that no right program exceeds."""

    def __init__(self, index: int, layout: Layout):
        super().__init__(index, layout)
        self.written: list[Instruction] = []
        self._most = sum(len(OPS) * len(layout.microbatches[pipe]) for pipe, _ in layout.held_by(index))

    async def execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        if len(self.written) == self._most:
            fact = f"worker {self.index} does not stop (instructions: {self._most})"
            raise ScheduleError(f"{fact}; each microbatch needs one F and one B, or F, I and W, of a stage")
        self.written.append(Instruction(op, pipe, stage, microbatch))


def _recorded(schedule: Schedule, layout: Layout, index: int) -> tuple[Instruction, ...]:
    worker = _RecordingWorker(index, layout)
    _run_without_waiting(schedule.schedule(worker), index)
    return tuple(worker.written)


def _run_without_waiting(coroutine: Coroutine[Any, Any, None], index: int) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise ScheduleError(f"the schedule of worker {index} waits for something; let it await its worker's verbs only")
