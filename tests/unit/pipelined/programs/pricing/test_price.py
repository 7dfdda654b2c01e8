"""The pricer, against the tables known for the schedules here; their closed forms have a file of their own."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelined.aio.clock import Deadlock
from pipelined.programs.costs import Costs
from pipelined.programs.instructions import Program
from pipelined.programs.pricing.price import price, price_schedule
from pipelined.programs.proof.check import check
from pipelined.programs.recording import record
from pipelined.schedules import ScheduleError, Shape, find, schedule_names
from pipelined.schedules.gpipe import stage_map as one_pipe


def timeline(name, depth, microbatches, costs=(1, 2), pipes=0, scale="direct", p2p=0.0):
    program = record(find(name), Shape(depth, microbatches, {"pipes": pipes, "scale": scale}))
    check(program)
    return price(program, Costs(*costs, p2p=p2p))


def bubble(priced, microbatches, costs):
    return priced.makespan - microbatches * sum(costs)


@pytest.mark.parametrize(
    "name, depth, microbatches, equal, double, idle, alive",
    [
        ("gpipe", 4, 4, 14, 21, 9, [4, 4, 4, 4]),
        ("one_f_one_b", 4, 4, 14, 21, 9, [4, 3, 2, 1]),
        ("gems", 4, 4, 23, 39, 27, [1, 1, 1, 1]),
        ("chimera", 4, 8, 18, 30, 6, [3, 4, 4, 3]),
        ("chimera", 8, 8, 22, 36, 12, [5, 6, 7, 8, 8, 7, 6, 5]),
    ],
)
def test_the_known_table(name, depth, microbatches, equal, double, idle, alive):
    assert timeline(name, depth, microbatches, (1, 1)).makespan == equal
    priced = timeline(name, depth, microbatches, (1, 2))
    assert (priced.makespan, bubble(priced, microbatches, (1, 2))) == (double, idle)
    assert priced.bubble_ratio == pytest.approx(idle / double)
    assert priced.peak_activations == alive


def test_a_message_between_workers_takes_its_time_and_one_at_home_none():
    assert timeline("gpipe", 3, 1, (1, 2), p2p=0.5).makespan == 3 * 3 + 4 * 0.5
    assert timeline("gpipe", 1, 5, (1, 2), p2p=0.5).makespan == 15


def test_stages_may_cost_differently():
    program = record(find("gpipe"), Shape(3, 1))
    priced = price(program, Costs([1, 2, 3], [10, 20, 30]))
    assert priced.makespan == 66
    assert [timed.end - timed.start for timed in priced.workers[1]] == [2, 20]


async def halves(worker):
    await worker.forward(0)
    await worker.backward_input(0)
    await worker.backward_weight(0)


def test_a_split_backward_passes_the_gradient_on_before_its_weight_half():
    schedule = SimpleNamespace(__name__="halves", stage_map=one_pipe, schedule=halves)
    check(record(schedule, Shape(2, 1)))
    priced = price_schedule(schedule, Shape(2, 1), Costs(1, 9, 2, 3))
    assert [(t.instruction.op, t.start, t.end) for t in priced.workers[0]] == [("F", 0, 1), ("I", 4, 6), ("W", 6, 9)]
    assert priced.peak_activations == [1, 1]


@settings(max_examples=20)
@given(data=st.data())
def test_one_pass_over_a_program_finds_the_moments_that_its_coroutines_find(data):
    """Costs are multiples of 1/8, so that neither way rounds."""
    schedule = find(data.draw(st.sampled_from(schedule_names()), "schedule"))
    depth = 2 * data.draw(st.integers(1, 3), "half the depth")
    shape = Shape(depth, depth * data.draw(st.integers(1, 2), "units"))
    eighths = st.lists(st.integers(1, 40).map(lambda n: n / 8), min_size=shape.depth, max_size=shape.depth)
    costs = Costs(*(data.draw(eighths, op) for op in "FBIW"), p2p=data.draw(st.integers(0, 9)) / 8)
    assert price_schedule(schedule, shape, costs) == price(record(schedule, shape, costs), costs)


def test_a_program_that_was_not_checked_and_deadlocks_is_no_timeline():
    right = record(find("gpipe"), Shape(2, 1))
    first, second = right.workers
    with pytest.raises(Deadlock, match=r"worker 0 waits for \('gradient', 0, 0, 0\), which never comes"):
        price(Program(right.stage_map, (first, second[:1])), Costs())


def answers(asking, costs, p2p=0.0):
    """What the first of two workers hears when it asks for the gradient of its microbatch, after some weight halves."""
    heard = []

    async def schedule(worker):
        await worker.forward(0)
        await worker.forward(0)
        await worker.backward_input(0)
        if worker.index == 0:
            for _ in range(asking):
                heard.append(worker.here("I", 0))
                await worker.do("W", 0, 0, 0)
        await worker.backward_input(0)

    timeline = price_schedule(
        SimpleNamespace(__name__="asks", stage_map=one_pipe, schedule=schedule), Shape(2, 2), costs
    )
    assert heard, timeline
    return heard


def test_a_message_is_here_when_what_makes_it_ends():
    """The second gradient is done when its worker has done F F I I, 1 + 2 + 2·3 seconds in; the first is here at 6."""
    assert answers(3, Costs(1, 9, 3, 1)) == [True, True, True]
    assert answers(3, Costs(1, 9, [1, 3], 1)) == [False, False, True]


def test_a_message_that_comes_at_this_very_moment_is_here_whatever_the_rounding():
    """One worker gets to 0.9 by threes, the other by ones, and the sums differ in the last place."""
    assert answers(3, Costs(0.1, 9, [0.1, 0.3], 0.1)) == [False, False, True]


def test_a_message_is_not_here_while_it_is_on_its_way():
    assert answers(5, Costs(1, 9, [1, 3], 1, p2p=1)) == [False, False, True, True, True]


def test_asking_takes_nothing_and_asks_for_no_more_than_there_is():
    async def schedule(worker):
        assert worker.here("F", 0) and worker.here("F", 0)
        await worker.forward(0)
        worker.here("F", 0)

    with pytest.raises(ScheduleError, match="one F more than there are"):
        price_schedule(SimpleNamespace(__name__="asks", stage_map=one_pipe, schedule=schedule), Shape(1, 1), Costs())


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf])
def test_what_is_no_duration_is_refused(seconds):
    with pytest.raises(ScheduleError, match=rf"backward-input must be finite seconds from 0 up \(got: {seconds}\)"):
        Costs(backward_input=seconds)


def test_free_instructions_leave_no_bubble():
    assert timeline("chimera", 4, 4, (0, 0)).bubble_ratio == 0.0


def test_a_stage_without_a_cost_is_refused_with_both_numbers():
    program = record(find("gpipe"), Shape(4, 4))
    with pytest.raises(ScheduleError, match=r"forward is for other stages \(stages with a cost: 2, depth: 4\); give"):
        price(program, Costs(forward=[1.0, 1.0]))
