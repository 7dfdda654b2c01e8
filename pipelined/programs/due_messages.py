"""The messages for which a dynamic schedule waits briefly, in training as on the virtual clock."""

import math
from collections.abc import Iterable

from pipelined.programs.instructions import Instruction


class DueMessages:
    """The messages that a worker waits for with a limit: those that are due next in the checked order of its schedule.

    Args:
        program: that order, weight halves included; with an empty one no message is due.
    """

    def __init__(self, program: Iterable[Instruction] = ()):
        self._halves: dict[Instruction, int] = {}
        halves = 0
        for instruction in program:
            if instruction.op == "W":
                halves += 1
            else:
                self._halves[instruction] = halves

    def covers(self, instruction: Instruction, halves: int) -> bool:
        """Whether an instruction is due after `halves` weight halves: at most that many precede it in the order."""
        return self._halves.get(instruction, math.inf) <= halves
