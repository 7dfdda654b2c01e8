"""A trace gives back what every rank did in every step, and is refused where that is not a step of the plan."""

import asyncio
from dataclasses import replace

import pytest

from pipelined.programs.instructions import OP_NAMES
from pipelined.programs.plan import Plan
from pipelined.programs.recording import record
from pipelined.schedules import Worker, find
from pipelined.traces.file import TraceError, write
from pipelined.traces.tracer import Tracer
from pipelined.training.segments.replay import check_steps, follow_order, follow_steps, of_rank, packed, read_orders

PLAN = Plan("zb_h1", 3, 2, 1, 4)
PROGRAM = record(find(PLAN.schedule), PLAN.shape)


def traced(path, programs, worlds=2):
    """A trace in which each group runs each of these programs, one a step."""
    workers = PLAN.stage_map.workers
    return written(path, [[program[rank % workers] for program in programs] for rank in range(worlds * workers)])


def written(path, ranks):
    """A trace in which each rank runs its orders, one a step."""
    tracers = [Tracer(float) for _ in ranks]
    for tracer, orders in zip(tracers, ranks, strict=True):
        now = 0
        for step, order in enumerate(orders):
            for i in order:
                tracer.record("receive", "gradient", now, now + 1, (step, i.stage, i.microbatch, i.pipe))
                kind = OP_NAMES[i.op].partition("_")[0], OP_NAMES[i.op]
                tracer.record(*kind, now, now + 1, (step, i.stage, i.microbatch, i.pipe))
                now += 1
            tracer.record("step", "step", now, now + 1, (step, -1, -1, -1))
    write(path, [tracer.events() for tracer in tracers])
    return path


class Followed(Worker):
    """Notes what it is told."""

    def __init__(self, index, stage_map):
        super().__init__(index, stage_map)
        self.told = []

    async def _execute(self, op, pipe, stage, microbatch):
        self.told.append((op, pipe, stage, microbatch))


def test_every_rank_finds_what_it_did_in_each_step(tmp_path):
    put_off = [[i for i in worker if i.op != "W"] + [i for i in worker if i.op == "W"] for worker in PROGRAM.workers]
    orders = packed(read_orders(traced(tmp_path / "trace.json", [PROGRAM.workers, put_off]), PLAN))
    for rank in range(PLAN.world_size):
        mine = of_rank(orders, rank)
        assert mine == {0: PROGRAM.workers[rank % 3], 1: tuple(put_off[rank % 3])}


def test_members_of_a_team_may_order_weight_halves_apart_unless_these_move_tensors(tmp_path):
    team = replace(PLAN, depth=1, width=1, tensor=2)
    (order,) = record(find(PLAN.schedule), team.shape).workers
    late = [i for i in order if i.op != "W"] + [i for i in order if i.op == "W"]
    path = written(tmp_path / "trace.json", [[order], [late]])
    assert read_orders(path, team) == {0: [order, tuple(late)]}
    with pytest.raises(TraceError, match="ranks 0 and 1 are one worker in two orders"):
        read_orders(path, team, in_order=True)


def test_a_worker_is_reported_the_order_and_nothing_else():
    worker = Followed(1, PLAN.stage_map)
    asyncio.run(follow_order(worker, PROGRAM.workers[1]))
    assert worker.told == [(i.op, i.pipe, i.stage, i.microbatch) for i in PROGRAM.workers[1]]


def test_a_trace_of_another_number_of_ranks_is_refused(tmp_path):
    path = traced(tmp_path / "trace.json", [PROGRAM.workers], worlds=1)
    with pytest.raises(TraceError, match=r"step 0 .* ranks: 6, there: 3\); replay it with the flags"):
        read_orders(path, PLAN)


def test_a_trace_that_lacks_an_instruction_is_refused_with_its_place(tmp_path):
    short = (PROGRAM.workers[0][:-1], *PROGRAM.workers[1:])
    path = traced(tmp_path / "trace.json", [PROGRAM.workers, short])
    with pytest.raises(TraceError, match=r"step 1 .* is not one of this plan[^$]*worker 0 lacks 0W3p0"):
        read_orders(path, PLAN)


ASYNCHRONOUS = Plan("async_1f1b", 3, 1, 1, 2)
SEGMENT = record(find(ASYNCHRONOUS.schedule), replace(ASYNCHRONOUS.shape, steps=4))


def traced_segment(path, first=0):
    """A trace of a segment, in which every rank runs its own part of the program."""
    tracers = [Tracer(float) for _ in SEGMENT.workers]
    for tracer, instructions in zip(tracers, SEGMENT.workers, strict=True):
        for now, i in enumerate(instructions):
            step, inside = divmod(i.microbatch, ASYNCHRONOUS.microbatches)
            tracer.record(OP_NAMES[i.op], OP_NAMES[i.op], now, now + 1, (first + step, i.stage, inside, i.pipe))
    write(path, [tracer.events() for tracer in tracers])
    return path


def test_without_a_flush_the_order_is_that_of_all_steps_together(tmp_path):
    orders = read_orders(traced_segment(tmp_path / "trace.json", first=5), ASYNCHRONOUS)
    assert orders == {5: list(SEGMENT.workers)}


@pytest.mark.parametrize("steps", [range(4), range(2, 4), range(3)])
def test_without_a_flush_a_worker_is_reported_what_belongs_to_its_steps(tmp_path, steps):
    orders = packed(read_orders(traced_segment(tmp_path / "trace.json"), ASYNCHRONOUS))
    stage_map = find(ASYNCHRONOUS.schedule).stage_map(replace(ASYNCHRONOUS.shape, steps=len(steps)))
    worker = Followed(0, stage_map)
    asyncio.run(follow_steps(worker, of_rank(orders, 0), steps, 2))
    numbers = range(2 * steps.start, 2 * steps.stop)
    mine = [(i.op, 0, 0, i.microbatch - numbers[0]) for i in SEGMENT.workers[0] if i.microbatch in numbers]
    assert worker.told == mine


def test_without_a_flush_an_order_of_other_steps_is_refused(tmp_path):
    orders = read_orders(traced_segment(tmp_path / "trace.json", first=2), ASYNCHRONOUS)
    check_steps(orders, ASYNCHRONOUS, range(2, 6))
    check_steps(orders, ASYNCHRONOUS, range(0))
    for steps in (range(1, 6), range(2, 7)):
        with pytest.raises(TraceError, match=rf"its own: 2 to 5, to be trained: {steps[0]} to {steps[-1]}\); without"):
            check_steps(orders, ASYNCHRONOUS, steps)
    check_steps({}, PLAN, range(100))


def test_without_a_flush_a_trace_that_lacks_a_step_is_refused(tmp_path):
    path = traced_segment(tmp_path / "trace.json")
    path.write_text(path.read_text().replace('"step":1', '"step":7'))
    with pytest.raises(TraceError, match=r"step 0 .* is not one of this plan"):
        read_orders(path, ASYNCHRONOUS)


def test_a_trace_without_a_step_is_refused(tmp_path):
    path = traced(tmp_path / "trace.json", [])
    with pytest.raises(TraceError, match="holds no step to replay"):
        read_orders(path, PLAN)
