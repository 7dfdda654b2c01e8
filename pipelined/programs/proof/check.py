"""Proof that a program is correct: complete, on the right workers, within its memory, and free of deadlock.

A send never blocks the program, and a message waits until it is received. So a program ends for every timing if and
only if program order, data and gradient sums together have no cycle. Limits on waiting messages and on live
microbatches are options. Nothing is executed and no time passes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from pipelined.programs.instructions import OP_NAMES, SUM, Instruction, Position, Program
from pipelined.programs.overlap import last_gradients, with_sums
from pipelined.programs.proof.deadlock import ProofLimits, find_deadlock
from pipelined.programs.staleness import version_of
from pipelined.programs.text_drawing import fault_grid
from pipelined.schedules import ScheduleError, StageMap


def check(
    program: Program, *, mailbox: int | None = None, blocking_sums: bool = False, budget: float | None = None
) -> None:
    """Prove a program.

    Args:
        mailbox: messages that a worker may keep before their receivers request them; a further send blocks. None: any
            number. The result holds for every timing of this order; module `deadlock` defines a mailbox.
        blocking_sums: a worker waits in a stage's gradient sum until the stage's other holders have joined; a stage
            without a sum in the program is summed after its last gradient. False: sums block no worker.
        budget: microbatches that a worker may have alive: forward begun, last backward (half) not ended. With several
            stages of a pipe it counts each of them: stage inputs.
    Raises:
        ScheduleError: the stage map is inconsistent; an instruction is unknown, misplaced, missing or repeated; more
            microbatches are alive than the budget; a gradient is summed before it is complete; or the order deadlocks.
            The message shows the workers concerned, with an arrow at each fault.
    Cost: one pass over the instructions.
    """
    if mailbox is not None and mailbox < 0:
        raise ScheduleError(f"a mailbox holds no negative number of messages (mailbox: {mailbox}); use 0 or more")
    check_stage_map(program.stage_map)
    _check_places(program)
    _check_sums(program)
    _check_complete(program)
    if not program.stage_map.updates.flushes:
        _check_updates(program)
    whole_program = with_sums(program, "eager") if blocking_sums else program
    if deadlock := find_deadlock(whole_program, ProofLimits(mailbox, blocking_sums)):
        raise ScheduleError(deadlock)
    if budget is not None:
        _check_budget(program, budget)


def check_stage_map(stage_map: StageMap) -> None:
    """Refuse a stage map unless each stage is on exactly one worker of the group and each microbatch in one pipe."""
    places = {(pipe, stage) for pipe in range(stage_map.pipes) for stage in range(stage_map.depth)}
    if set(stage_map.placement) != places:
        pipe, stage = min(set(stage_map.placement) ^ places)
        fact = f"the stage map places {len(stage_map.placement)} (pipe, stage) pairs of {len(places)}"
        raise ScheduleError(f"{fact} (first to differ: pipe {pipe}, stage {stage}); place every stage of every pipe")
    for (pipe, stage), worker in stage_map.placement.items():
        if worker not in range(stage_map.workers):
            fact = f"stage {stage} of pipe {pipe} is on worker {worker!r} (workers: {stage_map.workers})"
            raise ScheduleError(f"{fact}; give one number from 0 to {stage_map.workers - 1}")
    counts = Counter(microbatch for pipe in stage_map.microbatches for microbatch in pipe)
    if counts != Counter(range(len(counts))):
        number = min(m for m in {*counts, *range(len(counts))} if counts[m] != 1 or m not in range(len(counts)))
        fact = f"microbatch {number} is in {counts[number]} places (microbatches: {len(counts)})"
        raise ScheduleError(f"{fact}; number them from 0 without a gap, each in one pipe")


def _check_places(program: Program) -> None:
    stage_map = program.stage_map
    pipe_microbatches = [frozenset(pipe) for pipe in stage_map.microbatches]
    for (worker, position), instruction in program.instructions():
        pipe, stage = instruction.pipe, instruction.stage
        if not instruction.computes:
            continue
        if instruction.op not in OP_NAMES:
            problem = f"unknown op {instruction.op!r}; known: {', '.join([*OP_NAMES, SUM])}"
        elif (pipe, stage) not in stage_map.placement:
            problem = f"no stage {stage} of pipe {pipe} (stages: {stage_map.depth}, pipes: {stage_map.pipes})"
        elif worker != stage_map.placement[pipe, stage]:
            problem = f"not held here; stage {stage} of pipe {pipe} is on worker {stage_map.placement[pipe, stage]}"
        elif instruction.microbatch not in pipe_microbatches[pipe]:
            problem = f"not a microbatch of pipe {pipe}; its own are {list(stage_map.microbatches[pipe])}"
        else:
            continue
        raise _misplaced_error(program, (worker, position), problem)


def _check_sums(program: Program) -> None:
    """Require that a worker sums a stage's gradient at most once, and not before its last gradient of that stage."""
    for worker, instructions in enumerate(program.workers):
        last_positions = last_gradients(instructions)
        stages_held = program.stage_map.stages_of(worker)
        summed_stages = set[int]()
        for position, instruction in enumerate(instructions):
            if instruction.computes:
                continue
            stage = instruction.stage
            if not program.stage_map.updates.flushes:
                problem = f"without a flush each update sums the gradients of stage {stage}; leave the sum out"
            elif stage not in stages_held:
                problem = f"not held here; the stages of worker {worker} are {stages_held}"
            elif stage in summed_stages:
                problem = f"the gradient of stage {stage} is summed already; sum it once"
            elif last_positions.get(stage, 0) > position:
                last_gradient = f"{instructions[last_positions[stage]]!r}, instruction {last_positions[stage]}"
                problem = f"the gradient of stage {stage} is not complete; sum it after {last_gradient}"
            else:
                summed_stages.add(stage)
                continue
            raise _misplaced_error(program, (worker, position), problem)


def _misplaced_error(program: Program, position: Position, problem: str) -> ScheduleError:
    """The error of an instruction that its worker cannot do there."""
    worker, index = position
    fact = f"worker {worker} cannot do {program.workers[worker][index]!r} ({problem})"
    return ScheduleError(f"{fact}\n{fault_grid(program, {position: problem})}")


def _check_complete(program: Program) -> None:
    positions = defaultdict(list)
    for (worker, position), i in program.instructions():
        positions[worker, i.pipe, i.stage, i.microbatch].append((i.op, position))
    for (pipe, stage), worker in program.stage_map.placement.items():
        for microbatch in program.stage_map.microbatches[pipe]:
            _check_microbatch(program, worker, Instruction("F", pipe, stage, microbatch), positions)


def _check_microbatch(program: Program, worker: int, forward: Instruction, positions: dict) -> None:
    """Require one forward and one backward, or one forward and both halves, of one microbatch in one stage."""
    pipe, stage, microbatch = forward.pipe, forward.stage, forward.microbatch
    entries = positions[worker, pipe, stage, microbatch]
    counts = Counter(op for op, _ in entries)
    needed_ops = "FIW" if counts["I"] + counts["W"] else "FB"
    for op in OP_NAMES:
        needed_count = int(op in needed_ops)
        if counts[op] == needed_count:
            continue
        instruction = Instruction(op, pipe, stage, microbatch)
        verb = "lacks" if counts[op] < needed_count else f"has {counts[op]} times, not {needed_count},"
        fact = f"worker {worker} {verb} {instruction!r} ({OP_NAMES[op]} of stage {stage}, microbatch {microbatch})"
        op_positions = [position for entry_op, position in entries if entry_op == op]
        fault_positions = op_positions[needed_count:] or [len(program.workers[worker])]
        note = f"{'missing' if counts[op] < needed_count else 'once too often'}: {instruction!r}"
        grid = fault_grid(program, {(worker, position): note for position in fault_positions})
        raise ScheduleError(f"{fact}; each needs one F and one B, or F, I and W\n{grid}")


def _check_updates(program: Program) -> None:
    """Prove the order of updates; only for the program of an asynchronous schedule.

    Raises:
        ScheduleError: a worker holds several stages, mixes the gradients of two updates, has more
            microbatches alive than its stage may have, or uses a version of the weights before its update.
    """
    for worker, instructions in enumerate(program.workers):
        places_held = program.stage_map.held_by(worker)
        if len(places_held) != 1:
            fact = f"worker {worker} of an asynchronous schedule holds {len(places_held)} stages"
            raise ScheduleError(f"{fact}; put one stage on each worker, in one pipe")
        limit = program.stage_map.alive_limit(places_held[0][1])
        for position, problem in _update_faults(program, instructions, limit):
            raise _misplaced_error(program, (worker, position), f"{problem}; move it")


def _update_faults(program: Program, instructions: Sequence[Instruction], limit: int) -> Iterator[tuple[int, str]]:
    """(position, the fault there)."""
    updates = program.stage_map.updates
    backwards = forwards = 0
    for position, instruction in enumerate(instructions):
        newest_version = backwards // updates.every
        if instruction.op == "F":
            forwards += 1
            version = version_of(updates, instruction.microbatch, newest_version)
            if forwards - backwards > limit:
                yield position, f"{forwards - backwards} microbatches alive, of at most {limit}"
            elif version > newest_version:
                yield position, f"version {version} is not made yet, the newest is {newest_version}"
        elif instruction.op in "BW":
            update = instruction.microbatch // updates.every
            if update != newest_version:
                yield position, f"its gradient belongs to update {update}, but update {newest_version} is not complete"
            backwards += 1


def _check_budget(program: Program, budget: float) -> None:
    """Count the live microbatches of each worker in program order; timing does not change the count."""
    for worker, instructions in enumerate(program.workers):
        alive = 0
        for position, instruction in enumerate(instructions):
            alive += {"F": 1, "B": -1, "W": -1}.get(instruction.op, 0)
            if not alive / program.stage_map.pieces <= budget:
                count = f"{alive / program.stage_map.pieces:g}"
                unit = program.stage_map.unit_of_activations
                fact = f"worker {worker} has more alive than the budget ({unit}: {count}, budget: {budget:g})"
                grid = fault_grid(program, {(worker, position): f"{count} alive from here"})
                raise ScheduleError(f"{fact}; raise `budget=`, or choose a schedule that keeps fewer\n{grid}")
