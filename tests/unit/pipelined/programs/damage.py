"""Programs of every schedule, and ways to damage them: drop, swap, duplicate, retarget, split, sum somewhere."""

from dataclasses import replace
from functools import cache

from pipelined.programs.instructions import Instruction, gradient_sum
from pipelined.programs.recording import record
from pipelined.schedules import FLUSH, ScheduleError, Shape, find, schedule_names


@cache
def sound_programs(depths=(1, 2, 3, 4, 6), microbatches=(1, 2, 3, 4, 6)):
    """A program of every schedule in every one of these shapes that it takes."""
    return [
        program
        for name in schedule_names()
        for depth in depths
        for number in microbatches
        for chunks in (1, 2)
        for program in recorded(name, Shape(depth, number, {"chunks": chunks}))
    ]


def recorded(name, shape):
    """The program, if there is one; of an asynchronous schedule its order alone, without the rules of its updates."""
    try:
        program = record(find(name), shape)
    except ScheduleError:
        return []
    return [replace(program, stage_map=replace(program.stage_map, updates=FLUSH))]


def with_worker(program, worker, instructions):
    workers = list(program.workers)
    workers[worker] = tuple(instructions)
    return replace(program, workers=tuple(workers))


def damaged(random, programs, damages):
    """One of the programs with one or two things wrong, or just different."""
    program = random.choice(programs)
    for _ in range(random.randint(1, 2)):
        worker = random.choice([worker for worker, mine in enumerate(program.workers) if mine])
        mine = list(program.workers[worker])
        random.choice(damages)(random, program.stage_map, mine)
        program = with_worker(program, worker, mine)
        if not any(program.workers):
            break
    return program


def drop(random, stage_map, mine):
    del mine[random.randrange(len(mine))]


def swap(random, stage_map, mine):
    first, second = random.randrange(len(mine)), random.randrange(len(mine))
    mine[first], mine[second] = mine[second], mine[first]


def swap_neighbours(random, stage_map, mine):
    first = random.randrange(len(mine))
    mine[first - 1], mine[first] = mine[first], mine[first - 1]


def duplicate(random, stage_map, mine):
    mine.insert(random.randint(0, len(mine)), random.choice(mine))


def retarget(random, stage_map, mine):
    changes = {
        "op": "FBIW",
        "pipe": range(stage_map.pipes + 1),
        "stage": range(stage_map.depth + 1),
        "microbatch": range(7),
    }
    field = random.choice(sorted(changes))
    position = random.randrange(len(mine))
    mine[position] = replace(mine[position], **{field: random.choice(changes[field])})


def split(random, stage_map, mine):
    """Make halves of one backward, the weight half anywhere."""
    whole = [position for position, instruction in enumerate(mine) if instruction.op == "B"]
    if whole:
        position = random.choice(whole)
        i = mine[position]
        mine[position] = Instruction("I", i.pipe, i.stage, i.microbatch)
        mine.insert(random.randint(0, len(mine)), Instruction("W", i.pipe, i.stage, i.microbatch))


def sum_somewhere(random, stage_map, mine):
    """Sum the gradient of some stage, more likely late than early."""
    late = random.randint(random.randint(0, len(mine)), len(mine))
    mine.insert(late, gradient_sum(random.choice([i.stage for i in mine] or [0])))


DAMAGES = (drop, swap, swap_neighbours, duplicate, retarget, split, sum_somewhere)
REORDERINGS = (swap, swap_neighbours, split, sum_somewhere)
"""Those that leave a program complete, so that order alone decides."""
