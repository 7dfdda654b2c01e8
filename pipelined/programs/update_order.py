"""Proof that the updates of an asynchronous schedule come in order: what the checker asks of it beyond the rest.

The rule: nothing is executed and no time passes; the program is complete, and its instructions are in their places.
"""

from collections.abc import Iterator, Sequence

from pipelined.programs.instructions import Instruction, Program
from pipelined.programs.staleness import version_of
from pipelined.programs.text_drawing import fault_grid
from pipelined.schedules import ScheduleError


def check_updates(program: Program) -> None:
    """Prove the order of an asynchronous schedule's updates, beyond what is proved of any program.

    Raises:
        ScheduleError: a worker holds several stages, mixes the gradients of two updates, has more than D - s
            microbatches alive, or takes weights that are not made yet.
    """
    for worker, instructions in enumerate(program.workers):
        held = program.layout.held_by(worker)
        if len(held) != 1:
            fact = f"worker {worker} of an asynchronous schedule holds {len(held)} stages"
            raise ScheduleError(f"{fact}; put one stage on each worker, in one pipe")
        most = program.layout.depth - held[0][1]
        for position, problem in _faults(program, instructions, most):
            fact = f"worker {worker} cannot do {instructions[position]!r} ({problem})"
            raise ScheduleError(f"{fact}; move it\n{fault_grid(program, {(worker, position): problem})}")


def _faults(program: Program, instructions: Sequence[Instruction], most: int) -> Iterator[tuple[int, str]]:
    """(position, what is wrong there)."""
    updates = program.layout.updates
    assert updates is not None
    done = begun = 0
    for position, instruction in enumerate(instructions):
        newest = done // updates.every
        if instruction.op == "F":
            begun += 1
            version = version_of(updates, instruction.microbatch, newest)
            if begun - done > most:
                yield position, f"{begun - done} microbatches alive, of at most {most}"
            elif version > newest:
                yield position, f"version {version} is not made yet, the newest is {newest}"
        elif instruction.op in "BW":
            update = instruction.microbatch // updates.every
            if update != newest:
                yield position, f"its gradient belongs to update {update}, but update {newest} is not complete"
            done += 1
