"""Proof that a program is right: complete, on the right workers, and free of deadlock whatever the timing.

A send never blocks the program and a message waits until it is asked for, so a program ends for every timing if and
only if program order and data dependencies together have no cycle. The rule: nothing is executed and no time passes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from pipelined.grid import fault_grid
from pipelined.program import OPS, Instruction, Program, Token
from pipelined.schedules import Layout, ScheduleError

Place = tuple[int, int]
"""(worker, position in its program)."""


def check(program: Program) -> None:
    """Prove a program.

    Raises:
        ScheduleError: the layout does not add up; an instruction is unknown, misplaced, missing or repeated; or the
            order deadlocks. The message shows the workers concerned with an arrow at each fault.
    Cost: one pass over the instructions.
    """
    check_layout(program.layout)
    _check_places(program)
    _check_complete(program)
    _check_acyclic(program)


def check_layout(layout: Layout) -> None:
    """Refuse a layout in which a stage is not on one worker of the group, or a microbatch not in one pipe."""
    places = {(pipe, stage) for pipe in range(layout.pipes) for stage in range(layout.depth)}
    if set(layout.placement) != places:
        odd = sorted(set(layout.placement) ^ places)[0]
        fact = f"the layout places {len(layout.placement)} (pipe, stage) pairs of {len(places)}"
        raise ScheduleError(f"{fact} (first to differ: pipe {odd[0]}, stage {odd[1]}); place every stage of every pipe")
    for (pipe, stage), workers in layout.placement.items():
        if len(workers) != 1 or workers[0] not in range(layout.workers):
            fact = f"stage {stage} of pipe {pipe} is on workers {list(workers)}"
            raise ScheduleError(f"{fact} (workers: {layout.workers}); name exactly one of 0 to {layout.workers - 1}")
    numbers = Counter(microbatch for pipe in layout.microbatches for microbatch in pipe)
    if numbers != Counter(range(len(numbers))):
        wrong = sorted(m for m in {*numbers, *range(len(numbers))} if numbers[m] != 1 or m not in range(len(numbers)))
        fact = f"microbatch {wrong[0]} is in {numbers[wrong[0]]} places (microbatches: {len(numbers)})"
        raise ScheduleError(f"{fact}; number them from 0 without a gap, each in one pipe")


def _check_places(program: Program) -> None:
    layout = program.layout
    for (worker, position), instruction in _everything(program):
        pipe, stage = instruction.pipe, instruction.stage
        if instruction.op not in OPS:
            problem = f"unknown op {instruction.op!r}; known: {', '.join(OPS)}"
        elif (pipe, stage) not in layout.placement:
            problem = f"no such stage (pipes: {layout.pipes}, depth: {layout.depth}); keep to 0 … one less"
        elif (worker,) != layout.placement[pipe, stage]:
            problem = f"not held here; stage {stage} of pipe {pipe} is on worker {layout.placement[pipe, stage][0]}"
        elif instruction.microbatch not in layout.microbatches[pipe]:
            problem = f"not a microbatch of pipe {pipe}; its own are {list(layout.microbatches[pipe])}"
        else:
            continue
        fact = f"worker {worker} cannot do {instruction!r} ({problem})"
        raise ScheduleError(f"{fact}\n{fault_grid(program, {(worker, position): problem})}")


def _check_complete(program: Program) -> None:
    found = defaultdict(list)
    for (worker, position), i in _everything(program):
        found[worker, i.pipe, i.stage, i.microbatch].append((i.op, position))
    for (pipe, stage), (worker,) in program.layout.placement.items():
        for microbatch in program.layout.microbatches[pipe]:
            _check_one(program, worker, Instruction("F", pipe, stage, microbatch), found)


def _check_one(program: Program, worker: int, forward: Instruction, found: dict) -> None:
    """One forward and one backward, or one forward and both halves, of one microbatch in one stage."""
    pipe, stage, microbatch = forward.pipe, forward.stage, forward.microbatch
    here = found[worker, pipe, stage, microbatch]
    counts = Counter(op for op, _ in here)
    needed = "FIW" if counts["I"] + counts["W"] else "FB"
    for op in OPS:
        wanted = int(op in needed)
        if counts[op] == wanted:
            continue
        instruction = Instruction(op, pipe, stage, microbatch)
        verb = "lacks" if counts[op] < wanted else f"has {counts[op]} times, not {wanted},"
        fact = f"worker {worker} {verb} {instruction!r} ({OPS[op]} of stage {stage}, microbatch {microbatch})"
        places = [position for done, position in here if done == op][wanted:] or [len(program.workers[worker])]
        note = f"{'missing' if counts[op] < wanted else 'once too often'}: {instruction!r}"
        grid = fault_grid(program, {(worker, position): note for position in places})
        raise ScheduleError(f"{fact}; each needs one F and one B, or F, I and W\n{grid}")


def _check_acyclic(program: Program) -> None:
    """Walk every worker as far as its messages allow; if somebody is left, show who waits for whom."""
    heads, given, depth = [0] * len(program.workers), set(), program.layout.depth
    waiting: dict[Token, int] = {}
    ready = list(range(len(program.workers)))
    while ready:
        worker = ready.pop()
        while heads[worker] < len(program.workers[worker]):
            instruction = program.workers[worker][heads[worker]]
            lacking = next((token for token in instruction.takes(depth) if token not in given), None)
            if lacking is not None:
                waiting[lacking] = worker
                break
            heads[worker] += 1
            for token in instruction.gives(depth):
                given.add(token)
                if token in waiting:
                    ready.append(waiting.pop(token))
    if waiting:
        raise ScheduleError(_deadlock(program, {worker: token for token, worker in waiting.items()}, heads))


def _deadlock(program: Program, lacking: dict[int, Token], heads: list[int]) -> str:
    givers = {t: place for place, i in _everything(program) for t in i.gives(program.layout.depth)}
    cycle, worker = [], min(lacking)
    while worker not in cycle:
        cycle.append(worker)
        worker = givers[lacking[worker]][0]
    cycle = cycle[cycle.index(worker) :]
    notes = {}
    for worker in cycle:
        giver, position = givers[lacking[worker]]
        needed = program.workers[giver][position]
        notes[worker, heads[worker]] = f"waits for {needed!r}, instruction {position} of worker {giver}"
    return f"the order deadlocks (workers in the cycle: {cycle}); move one of these\n{fault_grid(program, notes)}"


def _everything(program: Program) -> Iterator[tuple[Place, Instruction]]:
    for worker, instructions in enumerate(program.workers):
        for position, instruction in enumerate(instructions):
            yield (worker, position), instruction
