"""Preparation of a worker before the first step: its schedule is checked, and gradient sums are put into its program.

No torch. Recording runs an event loop of its own; where a loop is already running, call this from another thread.
"""

import hashlib
from dataclasses import dataclass, replace

from pipelined.programs.instructions import Instruction
from pipelined.programs.overlap import with_sums
from pipelined.programs.plan import Plan
from pipelined.programs.proof.check import check
from pipelined.programs.recording import record
from pipelined.schedules import Schedule, find, is_builtin


@dataclass(frozen=True)
class Prepared:
    """The checked schedule of one worker; it is the same in every step.

    Args:
        schedule: the module of its coroutine.
        instructions: the worker's instructions and gradient sums, in order.
        digest: a hash of all workers' instructions, without sums; "" for this project's schedules, which are code
            that all ranks have.
    """

    schedule: Schedule
    instructions: tuple[Instruction, ...]
    digest: str = ""


def prepare(plan: Plan, worker: int) -> Prepared:
    """Record and check a plan's schedule, and put its gradient sums where an idle gap hides them.

    Raises:
        ScheduleError: the schedule deadlocks, repeats or forgets an instruction, or sums a gradient too early.
    Cost: about 20 µs per instruction of the whole group.
    """
    return prepare_group(plan)[worker]


def prepare_group(plan: Plan, sums_start: str = "gap") -> list[Prepared]:
    """As `prepare`, for every worker of a group.

    The plan's costs determine the gaps and, with free messages, the order of a dynamic schedule: a message that is late
    by its travel alone is waited for.

    Args:
        sums_start: where gradient sums are put, one of `overlap.SUM_STARTS`.
    """
    schedule = find(plan.schedule)
    program = record(schedule, plan.proof_shape, replace(plan.costs, p2p=0.0))
    check(program)
    digest = "" if is_builtin(schedule) else hashlib.blake2b(repr(program.workers).encode(), digest_size=4).hexdigest()
    program_with_sums = with_sums(program, sums_start, plan.costs)
    return [Prepared(schedule, instructions, digest) for instructions in program_with_sums.workers]
