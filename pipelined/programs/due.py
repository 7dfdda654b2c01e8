"""Which message is due, and how long a worker with a weight half to do waits for one.

Where weight halves tile the gaps, a message is due at the very moment a worker looks for it; late by no more than its
travel, it would find that a weight half has begun. The one rule: the wait is a small share of a weight half, and it
ends, so that a rank which is really late holds nobody up. Knows orders alone.
"""

import math
from collections.abc import Iterable

from pipelined.programs.instructions import Instruction

PATIENCE = 0.25
"""The share of a weight half's seconds that a worker waits for a message that is due before it begins one."""


class Due:
    """What a worker is to do next, by the order its schedule was proved in.

    Args:
        program: that order, weight halves with all else; from an empty one nothing is ever due.
    """

    def __init__(self, program: Iterable[Instruction] = ()):
        self._halves: dict[Instruction, int] = {}
        halves = 0
        for instruction in program:
            if instruction.op == "W":
                halves += 1
            else:
                self._halves[instruction] = halves

    def __call__(self, instruction: Instruction, halves: int) -> bool:
        """Whether an instruction comes next after so many weight halves: no more came before it in that order."""
        return self._halves.get(instruction, math.inf) <= halves
