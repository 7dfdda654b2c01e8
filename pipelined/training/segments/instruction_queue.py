"""The instructions that wait for a worker's device, or are computed there, in the order in which they end."""

import asyncio
from collections import deque
from typing import Any

from pipelined.programs.instructions import Instruction
from pipelined.programs.updates.sum_starts import SumStarts

MAX_WITH_MESSAGE = 2
"""Instructions with a message, and weight halves, that wait in the queue of the device after the one that it computes.

More messages would be held long before their instruction, and weight halves would not fill the gaps that come later.
"""
MAX_WITHOUT = 32
"""Other instructions that wait there; they hold nothing. A bound lets other tasks of the loop run between them."""


class InstructionQueue:
    """The queue of one worker in one step. Instructions that compute nothing end with the one before them.

    Args:
        sums: what an instruction's end may start; None: nothing.

    Attributes:
        with_message, without_message: bound the instructions that hold memory before they begin, and the others;
            acquired before `add`.
        waiting: the instructions, each with its bound.
    """

    def __init__(self, sums: SumStarts[Any] | None):
        self._sums = sums
        self.with_message = asyncio.Semaphore(1 + MAX_WITH_MESSAGE)
        self.without_message = asyncio.Semaphore(1 + MAX_WITHOUT)
        self.waiting = deque[tuple[Instruction, asyncio.Semaphore]]()
        self._emptied: asyncio.Future[None] | None = None

    def add(self, instruction: Instruction, bound: asyncio.Semaphore) -> None:
        """Add an instruction; one that computes ends with `end`."""
        self.waiting.append((instruction, bound))
        if not instruction.computes:
            self._end_what_computes_nothing()

    def end(self, instruction: Instruction) -> None:
        """End an instruction, which the device has computed, and those behind it that compute nothing.

        Instructions before it have failed; they leave the queue without an end.
        """
        while self.waiting[0][0] != instruction:
            self.waiting.popleft()
        self._end_first()
        self._end_what_computes_nothing()

    def emptied(self) -> asyncio.Future[None]:
        """Done when the queue is next empty."""
        self._emptied = asyncio.get_running_loop().create_future()
        return self._emptied

    def _end_what_computes_nothing(self) -> None:
        while self.waiting and not self.waiting[0][0].computes:
            self._end_first()
        if self._emptied is not None and not self.waiting and not self._emptied.done():
            self._emptied.set_result(None)

    def _end_first(self) -> None:
        instruction, bound = self.waiting.popleft()
        if self._sums is not None:
            self._sums.record_end(instruction)
        bound.release()
