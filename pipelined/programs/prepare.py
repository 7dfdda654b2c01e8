"""Preparation of a worker before the first step: its schedule is checked, and its overlapped sums are determined.

No torch. Pricing runs an event loop of its own; where a loop is already running, call this from another thread.
"""

from dataclasses import dataclass

from pipelined.programs.check import check
from pipelined.programs.instructions import Instruction
from pipelined.programs.overlap import overlapped_stages
from pipelined.programs.plan import Plan
from pipelined.programs.price import Costs, price
from pipelined.programs.record import record
from pipelined.schedules import Schedule, find

COSTS = Costs(forward=1.0, backward=2.0)
"""The costs by which idle gaps are found: a backward does twice the work of a forward."""


@dataclass(frozen=True)
class Prepared:
    """The checked schedule of one worker; it is the same in every step.

    Args:
        schedule: the module of its coroutine.
        instructions: the worker's instructions, in order.
        overlapped: the stages with a gradient sum that starts right after their last backward.
    """

    schedule: Schedule
    instructions: tuple[Instruction, ...]
    overlapped: frozenset[int]


def prepare(plan: Plan, worker: int) -> Prepared:
    """Record, check and price a plan's schedule.

    Raises:
        ScheduleError: the schedule deadlocks, or repeats or forgets an instruction.
    Cost: about 20 µs per instruction of the whole group.
    """
    return prepare_group(plan)[worker]


def prepare_group(plan: Plan) -> list[Prepared]:
    """As `prepare`, for every worker of a group."""
    schedule = find(plan.schedule)
    program = record(schedule, plan.proof_shape)
    check(program)
    overlapped = overlapped_stages(price(program, COSTS))
    return [
        Prepared(schedule, instructions, frozenset(stage for who, stage in overlapped if who == worker))
        for worker, instructions in enumerate(program.workers)
    ]
