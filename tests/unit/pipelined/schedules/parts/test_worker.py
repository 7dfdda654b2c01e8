"""What `wait` returns and what it waits for, over a worker with messages that arrive when the test says so."""

import math

import pytest

from pipelined.schedules import ScheduleError, Shape, Worker
from pipelined.schedules.gpipe import stage_map


class Scripted(Worker):
    """The first of two workers with two microbatches.

    Args:
        arrived: the ops with a message that has arrived.
        later: the ops with a message that arrives during the wait.
    """

    def __init__(self, arrived="", later=""):
        super().__init__(0, stage_map(Shape(2, 2)))
        self.ops, self.later, self.waits = arrived, later, []

    async def _execute(self, op, pipe, stage, microbatch):
        pass

    def _has_arrived(self, at):
        return at[0] in self.ops

    async def _wait_for_arrival(self, choices, patience):
        self.waits.append((choices, patience))
        self.ops += self.later


async def test_the_first_choice_that_is_here_is_returned_without_a_wait():
    worker = Scripted(arrived="FB")
    assert await worker.wait(("B", 0), ("F", 0)) == "B"
    assert await worker.wait(("F", 0), ("B", 0)) == "F"
    assert not worker.waits


async def test_the_choice_that_arrives_is_returned():
    worker = Scripted(later="F")
    assert await worker.wait(("B", 0), ("F", 0)) == "F"
    assert worker.waits == [([("B", 0, 0, 0), ("F", 0, 0, 0)], math.inf)]


async def test_without_a_limit_the_wait_is_repeated_until_a_choice_is_here():
    worker = Scripted()
    answers = iter([False] * 5 + [True])
    worker._has_arrived = lambda at: next(answers)
    assert await worker.wait(("B", 0), ("F", 0)) == "F" and len(worker.waits) == 2


async def test_a_single_choice_is_left_to_its_verb():
    worker = Scripted()
    assert await worker.wait(("F", 0)) == "F" and not worker.waits


@pytest.mark.parametrize("op", ["Z", "W", "S"])
async def test_an_op_that_waits_for_no_message_is_refused(op):
    with pytest.raises(ScheduleError, match=f"worker 0 waits for the op '{op}'; known: F, B, I"):
        await Scripted().wait((op, 0))


async def test_a_choice_with_no_instruction_left_drops_out():
    worker = Scripted(arrived="F")
    for _ in range(2):
        assert await worker.wait(("F", 0)) == "F"
        await worker.forward(0)
    assert await worker.wait(("F", 0)) is None
    assert await worker.wait(("F", 0), ("B", 0)) == "B" and not worker.waits


@pytest.mark.parametrize("later, op", [("", None), ("B", "B")])
async def test_with_a_patience_none_says_that_the_message_is_late(later, op):
    worker = Scripted(later=later)
    assert await worker.wait(("B", 0, 0), patience=0.5) == op
    assert worker.waits == [([("B", 0, 0, 0)], 0.5)]


async def test_a_worker_that_knows_no_arrivals_refuses_to_choose_by_them():
    worker = Scripted()
    worker._wait_for_arrival = super(Scripted, worker)._wait_for_arrival
    assert await worker.wait(("B", 0), ("F", 0), patience=1.0) is None
    with pytest.raises(ScheduleError, match="let the stage map of an asynchronous schedule say its `updates`"):
        await worker.wait(("B", 0), ("F", 0))
