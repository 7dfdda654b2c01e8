"""The recorder: it writes down what a schedule's coroutines say, and refuses what cannot be written down."""

import asyncio
from types import SimpleNamespace

import pytest

from pipelined.program import Instruction
from pipelined.recorder import record
from pipelined.schedules import ScheduleError, Shape, find
from pipelined.schedules.gpipe import layout


def recorded(coroutine, depth=1, microbatches=1):
    return record(SimpleNamespace(__name__="test", layout=layout, schedule=coroutine), Shape(depth, microbatches))


def test_verbs_become_instructions_of_the_next_microbatch():
    async def schedule(worker):
        for _ in range(2):
            await worker.forward(0)
        for _ in range(2):
            await worker.backward_input(0)
            await worker.backward_weight(0)

    (only,) = recorded(schedule, microbatches=2).workers
    assert " ".join(map(repr, only)) == "0F0p0 0F1p0 0I0p0 0W0p0 0I1p0 0W1p0"


def test_a_microbatch_may_be_named():
    async def schedule(worker):
        await worker.forward(0, microbatch=1)

    assert recorded(schedule, microbatches=2).workers == ((Instruction("F", 0, 0, 1),),)


def test_one_forward_too_many_is_refused_with_its_place():
    async def schedule(worker):
        await worker.forward(0)
        await worker.forward(0)

    with pytest.raises(ScheduleError, match=r"worker 0 asks for one F more .*pipe: 0, stage: 0, microbatches: 1"):
        recorded(schedule)


def test_a_pipe_the_worker_does_not_hold_is_refused():
    async def schedule(worker):
        await worker.forward(3)

    with pytest.raises(ScheduleError, match="worker 0 holds no stage of pipe 3"):
        recorded(schedule)


def test_a_schedule_without_an_end_is_refused():
    async def schedule(worker):
        while True:
            await worker.forward(0, microbatch=0)

    with pytest.raises(ScheduleError, match="does not stop"):
        recorded(schedule)


def test_a_schedule_that_waits_for_anything_else_is_refused():
    async def schedule(worker):
        await asyncio.sleep(0)

    with pytest.raises(ScheduleError, match="waits for something"):
        recorded(schedule)


def test_recording_works_inside_a_running_loop():
    async def inside():
        return record(find("gpipe"), Shape(2, 1))

    assert len(asyncio.run(inside()).workers) == 2
