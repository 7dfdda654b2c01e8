"""Recording: run a schedule's coroutines with workers that only record their instructions.

A static schedule never waits while it is recorded, so recording needs no event loop, clock or device and can also be
called inside a running loop. Only a dynamic schedule, which queries for arrived messages, runs on the virtual clock.
"""

from collections.abc import Coroutine, Iterable
from typing import Any

from pipelined.aio.clock import Deadlock
from pipelined.errors import got, user_code
from pipelined.programs.costs import DEFAULT_COSTS, Costs
from pipelined.programs.instructions import OP_NAMES, Instruction, Program
from pipelined.programs.pricing.price import price_schedule
from pipelined.programs.proof.check import check
from pipelined.schedules import InstructionKey, Schedule, ScheduleError, Shape, StageMap, Worker, bytecode_limit, label


def record(schedule: Schedule, shape: Shape, costs: Costs = DEFAULT_COSTS) -> Program:
    """The program of a schedule for a shape. It is not checked: see `check.check`.

    A dynamic schedule, which calls `Worker.here`, is recorded twice: with every message in time, and on the virtual
    clock; the second gives the program. Both must have the same order of F, B and I. Where a loop is running, call this
    through `asyncio.to_thread` if the schedule may be dynamic.

    Args:
        costs: the costs that determine when a dynamic schedule's messages arrive. A static schedule does not use them.
    Raises:
        ScheduleError: the schedule refuses the shape; a coroutine calls for an instruction that does not exist, waits,
            or does not end; or a dynamic schedule is wrong with every message in time, or timing changes more than its
            weight halves (of an asynchronous one: more than which of its forwards and backwards comes first).
    """
    stage_map = schedule.stage_map(shape)
    if shape.steps != 1 and stage_map.updates.flushes:
        fact = f"{label(schedule)} flushes after every step (steps: {shape.steps})"
        raise ScheduleError(f"{fact}; use `steps=1`, or an asynchronous schedule")
    program, is_dynamic = _record_without_clock(schedule, stage_map)
    if not is_dynamic:
        return program
    check(program)
    return _record_on_clock(schedule, shape, costs, program)


def record_in_time(schedule: Schedule, stage_map: StageMap) -> Program:
    """The program of a schedule if every message has arrived in time: with a flush, weight halves then run latest.

    No instruction waits for a message there, so a weight half runs only at the schedule's own cap, or at the end.
    """
    return _record_without_clock(schedule, stage_map)[0]


class _RecordingWorker(Worker):
    """Records instructions, up to a number that no correct program exceeds."""

    def __init__(self, index: int, stage_map: StageMap):
        super().__init__(index, stage_map)
        self.instructions: list[Instruction] = []
        self.is_dynamic = False
        counts = [len(stage_map.microbatches[pipe]) for pipe, _ in stage_map.held_by(index)]
        self.limit = len(counts) + len(OP_NAMES) * sum(counts)

    async def _execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        if len(self.instructions) == self.limit:
            fact = f"worker {self.index} does not stop (instructions: {self.limit})"
            raise ScheduleError(f"{fact}; each microbatch needs one F and one B, or F, I and W, of a stage")
        self.instructions.append(Instruction(op, pipe, stage, microbatch))

    def _has_arrived(self, key: InstructionKey) -> bool:
        self.is_dynamic = True
        return True


def _record_without_clock(schedule: Schedule, stage_map: StageMap) -> tuple[Program, bool]:
    """The program, and whether the schedule queried for messages."""
    workers = [_record_worker(schedule, stage_map, index) for index in range(stage_map.workers)]
    program = Program(stage_map, tuple(tuple(worker.instructions) for worker in workers))
    return program, any(worker.is_dynamic for worker in workers)


def _record_worker(schedule: Schedule, stage_map: StageMap, index: int) -> _RecordingWorker:
    worker = _RecordingWorker(index, stage_map)
    what = f"the schedule of worker {index}"
    remedy = "correct it, and let it await its worker's verbs only"
    with bytecode_limit(schedule, what, worker.limit), user_code(what, remedy, ScheduleError, may_exit=False):
        _run_without_waiting(schedule.schedule(worker), index)
    return worker


def _record_on_clock(schedule: Schedule, shape: Shape, costs: Costs, program_in_time: Program) -> Program:
    """The program of a dynamic schedule at these costs, compared with its program with every message in time."""
    rule = "let what `here` and `wait` say change only when weight halves run"
    try:
        with bytecode_limit(schedule, "the schedule", len(OP_NAMES) * sum(map(len, program_in_time.workers))):
            program_on_clock = price_schedule(schedule, shape, costs).program
    except Deadlock as error:
        raise ScheduleError(f"the schedule deadlocks where messages come late; {rule}") from error
    orders = zip(program_in_time.workers, program_on_clock.workers, strict=True)
    for worker, (order_in_time, order_on_clock) in enumerate(orders):
        if _fixed_order(program_in_time, order_in_time) != _fixed_order(program_on_clock, order_on_clock):
            fact = f"worker {worker} does not keep its order of F, B and I where messages come late"
            raise ScheduleError(f"{fact}; {rule}")
    return program_on_clock


def _fixed_order(program: Program, instructions: Iterable[Instruction]) -> list[Instruction]:
    """The order that timing must not change: an asynchronous schedule keeps one of forwards and one of backwards."""
    order = skeleton(instructions)
    return order if program.stage_map.updates.flushes else sorted(order, key=lambda instruction: instruction.op)


def skeleton(instructions: Iterable[Instruction]) -> list[Instruction]:
    """The forwards, backwards and input halves, in order; no other worker waits for anything else."""
    return [instruction for instruction in instructions if instruction.op in "FBI"]


def _run_without_waiting(coroutine: Coroutine[Any, Any, None], index: int) -> None:
    if not isinstance(coroutine, Coroutine):
        raise ScheduleError(f"the schedule of worker {index} must be a coroutine {got(coroutine)}; write async def")
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise ScheduleError(f"the schedule of worker {index} waits for something; let it await its worker's verbs only")
