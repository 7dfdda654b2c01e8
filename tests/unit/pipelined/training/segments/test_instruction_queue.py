"""The queue of a worker's instructions: which have ended, and what that starts."""

import asyncio

from pipelined.programs.instructions import Instruction
from pipelined.training.segments.instruction_queue import InstructionQueue

FIRST = Instruction("F", 0, 0, 0)
SECOND = Instruction("B", 0, 0, 1)
SUM = Instruction("S", 0, 0, -1)


class NotedEnds:
    def __init__(self):
        self.instructions = []

    def record_end(self, instruction):
        self.instructions.append(instruction)


def queue_of(*instructions):
    sums = NotedEnds()
    queue = InstructionQueue(sums)
    for instruction in instructions:
        queue.add(instruction, asyncio.Semaphore(1))
    return queue, sums.instructions


def test_what_computes_nothing_ends_with_the_instruction_before_it():
    queue, ended = queue_of(SECOND, SUM, FIRST)
    queue.end(SECOND)
    assert ended == [SECOND, SUM]
    assert [instruction for instruction, _ in queue.waiting] == [FIRST]


def test_an_instruction_that_failed_does_not_end_in_place_of_the_next():
    """It did: its gradient sum would have started without its gradient."""
    queue, ended = queue_of(FIRST, SECOND)
    queue.end(SECOND)
    assert ended == [SECOND]
    assert not queue.waiting
