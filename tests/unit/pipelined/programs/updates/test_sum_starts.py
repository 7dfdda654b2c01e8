"""A sum starts where the program has it: with its last gradient, where the schedule asks for it, or after the flush."""

import asyncio
from types import SimpleNamespace

import pytest

from pipelined.actors.actor import Actor
from pipelined.programs.instructions import Instruction, gradient_sum
from pipelined.programs.updates.sum_starts import SumStarts
from tests.conformance.worlds import local_world

BACK0, BACK3 = Instruction("B", 0, 0, 0), Instruction("B", 1, 3, 1)
INPUT3, WEIGHT3, LATER3 = (Instruction(op, 1, 3, number) for op, number in (("I", 1), ("W", 1), ("W", 2)))
SUM0, SUM3 = gradient_sum(0), gradient_sum(3)


def trace(program, ended):
    """What is summed when, while these instructions end one after the other."""

    async def main():
        (only,) = local_world(1)
        seen = []

        async def sums(bucket):
            seen.append(bucket.stages)

        buckets = [SimpleNamespace(stages=stages) for stages in ((0,), (0, 3), (3,))]
        async with Actor(only) as actor:
            sync = SumStarts(actor, buckets, sums, program)
            for instruction in ended:
                sync.record_end(instruction)
                await asyncio.sleep(0)
                seen.append(repr(instruction))
            await sync.finish()
        return seen

    return asyncio.run(main())


def test_a_sum_after_its_last_gradient_starts_before_the_next_backward():
    assert trace([BACK3, SUM3, BACK0, SUM0], [BACK3, BACK0]) == [(3,), "3B1p1", "0B0p0", (0,), (0, 3)]


def test_sums_at_the_end_start_after_the_flush():
    assert trace([BACK3, BACK0, SUM0, SUM3], [BACK3, BACK0]) == ["3B1p1", "0B0p0", (0,), (0, 3), (3,)]


def test_a_bucket_of_two_stages_waits_for_both():
    ended = [BACK3, BACK0, INPUT3]
    assert trace([BACK3, SUM3, BACK0, SUM0, INPUT3], ended) == [(3,), "3B1p1", (0,), (0, 3), "0B0p0", "3I1p1"]


def test_a_sum_that_the_schedule_asks_for_later_starts_there():
    program = [BACK3, BACK0, SUM3, INPUT3, SUM0]
    assert trace(program, program[:4]) == ["3B1p1", "0B0p0", (3,), "3S", "3I1p1", (0,), (0, 3)]


@pytest.mark.parametrize("ended", [[LATER3, BACK0, WEIGHT3], [WEIGHT3, BACK0, SUM3, LATER3]])
def test_where_a_dynamic_schedule_moves_the_last_weight_half_the_sum_waits_for_it(ended):
    seen = trace([WEIGHT3, LATER3, SUM3, BACK0, SUM0], ended)
    assert seen[:-2] == [*map(repr, ended[:-1]), (3,), repr(ended[-1])]


def test_a_stage_without_a_microbatch_adds_zeros_after_the_flush():
    assert trace([BACK0, SUM0, SUM3], [BACK0]) == ["0B0p0", (0,), (0, 3), (3,)]
