"""The programs that one search records, each once for plans of the same shape."""

from dataclasses import replace
from functools import cache, lru_cache

from pipelined.programs.instructions import Program
from pipelined.programs.plan import Plan
from pipelined.programs.recording import record, record_in_time
from pipelined.schedules import ScheduleError, Shape, find


class RecordedPrograms:
    """The programs of one search. The next search records anew: a user may have changed a schedule under its name."""

    def __init__(self) -> None:
        self._in_time = lru_cache(maxsize=256)(_in_time)
        self._splits_backward = cache(_splits_backward)

    def in_time(self, plan: Plan) -> Program:
        """The program of a plan with every message in time; see `recording.record_in_time`."""
        return self._in_time(plan.schedule, plan.shape)

    def splits_backward(self, plan: Plan) -> bool:
        """Whether the schedule splits backwards at some number of microbatches; not all schedules do so at each."""
        shapes = (replace(plan.shape, microbatches=microbatches) for microbatches in (1, plan.depth, 2 * plan.depth))
        return any(self._splits_backward(plan.schedule, shape) for shape in shapes)


def _in_time(name: str, shape: Shape) -> Program:
    schedule = find(name)
    return record_in_time(schedule, schedule.stage_map(shape))


def _splits_backward(name: str, shape: Shape) -> bool:
    try:
        program = record(find(name), shape)
    except ScheduleError:  # the schedule refuses this number of microbatches
        return False
    return any(instruction.op == "W" for worker in program.workers for instruction in worker)
