"""How old the weights are that a microbatch meets, and how many versions of them are held: read off a program's order.

Versions of a stage's weights are counted from 0 at the start of the stretch; update u makes version u + 1, and those
before 0 are from before the start. The rule: timing does not matter here, only what comes before what on a worker. No
torch: the proof, the price and the training use the same rules.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipelined.programs.instructions import Instruction, Program
from pipelined.schedules import Shape, Updates


@dataclass(frozen=True)
class Use:
    """What a stage does with one microbatch.

    Args:
        stage, microbatch: whose.
        version: of the weights it goes forward and back with.
        update: which its gradient goes into; it is subtracted from the version of this number.
    """

    stage: int
    microbatch: int
    version: int
    update: int

    @property
    def staleness(self) -> int:
        """Updates of the stage between the weights of the gradient and those it is subtracted from."""
        return self.update - max(self.version, 0)


def version_of(updates: Updates, microbatch: int, newest: int) -> int:
    """The version a microbatch goes forward with, on a stage whose newest is this one."""
    return newest if updates.delay is None else microbatch // updates.every - updates.delay


def shared_version(updates: Updates, microbatch: int, behind: int) -> int:
    """The version of a parameter that several stages hold: whatever the timing, the same on all of them.

    It is the newest that the first of them is sure to have when the microbatch comes in.

    Args:
        behind: stages behind the first of them.
    """
    return version_of(updates, microbatch, max(0, microbatch - behind) // updates.every)


def steps_to_fill(shape: Shape) -> int:
    """Steps of a stretch after which every further one is like the last: the pipe is full, and delays are settled."""
    return 2 + -(-shape.depth // shape.microbatches)


def uses(program: Program, worker: int) -> Iterator[Use]:
    """What a worker does with each microbatch, in the order of their forwards."""
    updates, done = _updates(program), 0
    for instruction in program.workers[worker]:
        if instruction.op == "F":
            microbatch = instruction.microbatch
            version = version_of(updates, microbatch, done // updates.every)
            yield Use(instruction.stage, microbatch, version, microbatch // updates.every)
        elif instruction.op in "BW":
            done += 1


def staleness(program: Program) -> list[int]:
    """For each stage the greatest delay of a gradient."""
    worst = [0] * program.layout.depth
    for worker in range(len(program.workers)):
        for use in uses(program, worker):
            worst[use.stage] = max(worst[use.stage], use.staleness)
    return worst


def most_alive(instructions: Iterable[Instruction]) -> int:
    """The most microbatches alive at once: forward begun, last backward (half) not ended."""
    change, alive, most = {"F": 1, "B": -1, "W": -1}, 0, 0
    for instruction in instructions:
        alive += change.get(instruction.op, 0)
        most = max(most, alive)
    return most


def versions_held(updates: Updates, alive: int) -> int:
    """The most versions of its weights that a stage holds with so many microbatches alive, however long the stretch.

    Those are the newest and, for microbatches under way and to come, older ones.
    """
    return 1 + (-(-(alive - 1) // updates.every) if updates.delay is None else updates.delay)


def _updates(program: Program) -> Updates:
    assert program.layout.updates is not None
    return program.layout.updates
