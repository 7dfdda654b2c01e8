"""The recorder: it writes down what a schedule's coroutines say, and refuses what cannot be written down."""

import asyncio
from types import SimpleNamespace

import pytest

from pipelined.programs.costs import DEFAULT_COSTS, Costs
from pipelined.programs.instructions import Instruction
from pipelined.programs.plan import Plan
from pipelined.programs.prepare import prepare
from pipelined.programs.recording import record
from pipelined.schedules import ScheduleError, Shape, find
from pipelined.schedules.gpipe import stage_map
from tests.launching import ROOT


def recorded(coroutine, depth=1, microbatches=1, costs=DEFAULT_COSTS):
    schedule = SimpleNamespace(__name__="test", stage_map=stage_map, schedule=coroutine)
    return record(schedule, Shape(depth, microbatches), costs)


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


def test_a_microbatch_that_was_named_is_not_the_next_again():
    async def schedule(worker):
        await worker.forward(0, microbatch=1)
        for _ in range(2):
            await worker.forward(0)
        with pytest.raises(ScheduleError, match=r"one F more than there are .*microbatches: 3"):
            await worker.forward(0)

    assert [i.microbatch for i in recorded(schedule, microbatches=3).workers[0]] == [1, 0, 2]


def test_a_sum_is_recorded_where_the_schedule_starts_it():
    async def schedule(worker):
        await worker.forward(0)
        await worker.backward(0)
        await worker.sync(worker.index)

    assert [list(map(repr, mine)) for mine in recorded(schedule, 2).workers] == [
        ["0F0p0", "0B0p0", "0S"],
        ["1F0p0", "1B0p0", "1S"],
    ]


def test_a_schedule_that_sums_without_end_is_refused():
    async def schedule(worker):
        while True:
            await worker.sync(0)

    with pytest.raises(ScheduleError, match="does not stop"):
        recorded(schedule)


def test_an_error_and_a_comparison_of_ranks_know_a_schedule_of_the_user_s_own_by_its_whole_name(tmp_path, monkeypatch):
    """A table `pipelined.csv` counted as this project's, and gems.py was called py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipelined.csv").write_text("0F0,0B0\n")
    digests = [prepare(Plan(name, 1, 1, 1, 1), 0).digest for name in ("pipelined.csv", "gpipe")]
    assert [bool(digest) for digest in digests] == [True, False]
    gems = str(ROOT / "docs" / "examples" / "gems.py")
    for name, said in ((gems, gems), ("gpipe", "gpipe")):
        with pytest.raises(ScheduleError, match=rf"^{said} flushes after every step \(steps: 2\)"):
            record(find(name), Shape(2, 2, steps=2))


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


def test_a_schedule_that_needs_an_event_loop_is_told_what_it_may_await():
    """Outside of a loop asyncio raises by itself, and its message names no rule of schedules."""

    async def schedule(worker):
        await asyncio.to_thread(print)

    with pytest.raises(ScheduleError, match=r"no running event loop.*let it await its worker's verbs only"):
        recorded(schedule)


def test_recording_works_inside_a_running_loop():
    async def inside():
        return record(find("gpipe"), Shape(2, 1))

    assert len(asyncio.run(inside()).workers) == 2


async def meanwhile(worker):
    """Two microbatches; the first weight half runs early if the second input half has to wait."""
    await worker.forward(0)
    await worker.forward(0)
    await worker.backward_input(0)
    early = not worker.here("I", 0)
    if early:
        await worker.backward_weight(0)
    await worker.backward_input(0)
    for _ in range(2 - early):
        await worker.backward_weight(0)


def test_a_schedule_that_asks_is_recorded_at_the_costs_given():
    order = [
        " ".join(f"{i.op}{i.microbatch}" for i in recorded(meanwhile, 2, 2, costs).workers[0])
        for costs in (Costs(1, 4, 3, 1), Costs(1, 4, [1, 3], 1), DEFAULT_COSTS)
    ]
    assert order == ["F0 F1 I0 I1 W0 W1", "F0 F1 I0 W0 I1 W1", "F0 F1 I0 I1 W0 W1"]


def test_a_schedule_that_asks_is_recorded_beside_a_running_loop():
    async def inside():
        return await asyncio.to_thread(recorded, meanwhile, 2, 2)

    assert asyncio.run(inside()) == recorded(meanwhile, 2, 2)


def test_timing_may_not_change_the_order_of_forwards_and_backwards():
    async def schedule(worker):
        if worker.here("F", 0):
            await worker.forward(0, microbatch=0)
            await worker.forward(0, microbatch=1)
        else:
            await worker.forward(0, microbatch=1)
            await worker.forward(0, microbatch=0)
        await worker.backward(0)
        await worker.backward(0)

    with pytest.raises(
        ScheduleError, match="worker 1 does not keep its order of F, B and I where messages come late; let"
    ):
        recorded(schedule, 2, 2)


def test_an_order_that_deadlocks_when_messages_are_late_is_refused():
    async def schedule(worker):
        if worker.here("F", 0):
            await worker.forward(0)
            await worker.backward(0)
        else:
            await worker.backward(0)
            await worker.forward(0)

    with pytest.raises(ScheduleError, match="deadlocks where messages come late"):
        recorded(schedule, 2)


def test_a_wrong_schedule_that_asks_is_refused_with_the_grid():
    async def schedule(worker):
        worker.here("F", 0)
        await worker.backward(0)
        await worker.forward(0)

    with pytest.raises(ScheduleError, match="the order deadlocks"):
        recorded(schedule, 2)


def test_what_a_schedule_asks_too_much_when_messages_are_late_is_one_message():
    async def schedule(worker):
        late = not worker.here("F", 0)
        for _ in range(1 + late):
            await worker.forward(0)
        await worker.backward(0)

    with pytest.raises(ScheduleError, match="worker 1 asks for one F more than there are"):
        recorded(schedule, 2)
