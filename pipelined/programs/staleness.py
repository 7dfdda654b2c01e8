"""Staleness: the age of the weights that a microbatch uses, and the versions held, derived from a program's order.

Versions of a stage's weights are counted from 0 at the start of the segment. Update u makes version u + 1; versions
below 0 are from before the start. Only the order of instructions on a worker matters here, not the timing. No torch:
the check, the pricing and training use the same functions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from pipelined.programs.instructions import Instruction, Program
from pipelined.schedules import Shape, Updates, alive_limits


@dataclass(frozen=True)
class VersionUse:
    """The use of weights by one microbatch in one stage.

    Args:
        version: the version of the weights in its forward and backward.
        update: the update that its gradient is part of; this update changes the version of the same number.
    """

    stage: int
    microbatch: int
    version: int
    update: int

    @property
    def staleness(self) -> int:
        """Updates of the stage between the weights of the gradient and those that it is subtracted from."""
        return self.update - max(self.version, 0)


def version_of(updates: Updates, microbatch: int, newest: int) -> int:
    """The version that a microbatch's forward uses, on a stage with this newest version."""
    return newest if updates.delay is None else microbatch // updates.every - updates.delay


def shared_version(updates: Updates, microbatch: int, alive: int) -> int:
    """The version of a parameter that several stages hold; it is the same on all of them for every timing.

    It is the newest version that the first of these stages certainly has when the microbatch enters.

    Args:
        alive: the most microbatches that the first of these stages has alive beside this one.
    """
    return version_of(updates, microbatch, max(0, microbatch - alive) // updates.every)


def steps_to_fill(shape: Shape) -> int:
    """The number of steps until the pipe is full and delays are constant; every later step is like the one before."""
    return 2 + -(-max(shape.depth, *alive_limits(shape), 1) // shape.microbatches)


def version_uses(program: Program, worker: int) -> Iterator[VersionUse]:
    """The weights that a worker uses for each microbatch, in the order of the forwards."""
    updates, backwards = program.stage_map.updates, 0
    for instruction in program.workers[worker]:
        if instruction.op == "F":
            microbatch = instruction.microbatch
            version = version_of(updates, microbatch, backwards // updates.every)
            yield VersionUse(instruction.stage, microbatch, version, microbatch // updates.every)
        elif instruction.op in "BW":
            backwards += 1


def staleness(program: Program) -> list[int]:
    """The greatest delay of a gradient, in updates, for each stage."""
    worst = [0] * program.stage_map.depth
    for worker in range(len(program.workers)):
        for use in version_uses(program, worker):
            worst[use.stage] = max(worst[use.stage], use.staleness)
    return worst


def peak_alive(instructions: Iterable[Instruction]) -> int:
    """The most microbatches alive at once: forward begun, last backward (half) not ended."""
    change = {"F": 1, "B": -1, "W": -1}
    return max(accumulate((change.get(instruction.op, 0) for instruction in instructions), initial=0))


def versions_held(updates: Updates, alive: int) -> int:
    """The most versions of its weights that a stage holds with `alive` microbatches, for a segment of any length.

    These are the newest one and the older ones that live and later microbatches use.
    """
    return 1 + (-(-max(0, alive - 1) // updates.every) if updates.delay is None else updates.delay)
