"""The schedules without a flush: the order, the delays and the versions they are known by, proved on programs."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from pipelined.__main__ import main
from pipelined.programs.costs import DEFAULT_COSTS, Costs
from pipelined.programs.instructions import Instruction, Program
from pipelined.programs.pricing.price import price
from pipelined.programs.pricing.steady import steady
from pipelined.programs.proof.check import check
from pipelined.programs.recording import record
from pipelined.programs.staleness import staleness, steps_to_fill, version_uses, versions_held
from pipelined.schedules import ScheduleError, Shape, Updates, find

NAMES = ("pipedream", "pipedream_2bw", "async_1f1b")
every_asynchronous = pytest.mark.parametrize("name", NAMES)
depths = pytest.mark.parametrize("depth", [1, 2, 3, 4, 8])


def recorded(name, depth, microbatches, steps, costs=DEFAULT_COSTS):
    program = record(find(name), Shape(depth, microbatches, steps=steps), costs)
    check(program)
    return program


def alive(program, worker):
    change, now, most = Counter(F=1, B=-1), 0, 0
    for instruction in program.workers[worker]:
        now += change[instruction.op]
        most = max(most, now)
    return most


@depths
def test_pipedream_s_delays_and_versions_are_those_of_the_paper(depth):
    """Stage s subtracts g(w(t-(D-1-s))) and keeps D-s versions; at first there is nothing older than the start."""
    program = recorded("pipedream", depth, 3, 8)
    for stage in range(depth):
        versions = [use.version for use in version_uses(program, stage)]
        assert versions == [max(0, microbatch - (depth - 1 - stage)) for microbatch in range(24)]
    assert staleness(program) == list(range(depth - 1, -1, -1))
    assert price(program, Costs()).weight_copies == list(range(depth, 0, -1))


@depths
def test_2bw_subtracts_gradients_of_one_update_ago_on_every_stage(depth):
    program = recorded("pipedream_2bw", depth, depth, 5)
    for stage in range(depth):
        assert [max(use.version, 0) for use in version_uses(program, stage)] == [
            max(m // depth - 1, 0) for m in range(5 * depth)
        ]
    assert staleness(program) == [1] * depth
    assert price(program, Costs()).weight_copies == [2] * depth


@pytest.mark.parametrize("depth, microbatches", [(4, 3), (2, 1)])
def test_2bw_refuses_fewer_microbatches_than_stages(depth, microbatches):
    with pytest.raises(ScheduleError, match=rf"microbatches: {microbatches}, depth: {depth}\); use `microbatches="):
        find("pipedream_2bw").stage_map(Shape(depth, microbatches))


def versions_at_once(program, worker, updates):
    """Counted one instruction at a time: the newest, those under way, and those the next forwards will take."""
    version, under_way, done, most = {u.microbatch: u.version for u in version_uses(program, worker)}, {}, 0, 1
    for instruction in program.workers[worker]:
        if instruction.op == "F":
            under_way[instruction.microbatch] = version[instruction.microbatch]
        else:
            del under_way[instruction.microbatch]
            done += 1
        newest = done // updates.every
        most = max(most, len({*range(newest - (updates.delay or 0), newest + 1), *under_way.values()}))
    return most


@every_asynchronous
@depths
@pytest.mark.parametrize("times", [1, 2])
def test_the_versions_held_are_those_counted_in_a_long_segment(name, depth, times):
    program = recorded(name, depth, times * depth, 6)
    updates = program.stage_map.updates
    for worker in range(depth):
        assert versions_held(updates, alive(program, worker)) == versions_at_once(program, worker, updates)


@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_versions_held_counts_any_number_of_gradients_an_update(every):
    """With D - s alive under updates of `every` microbatches, by counting in PipeDream's order."""
    program = recorded("pipedream", 6, 5, 6)
    updates = Updates(every)
    program = replace(program, stage_map=replace(program.stage_map, updates=updates))
    for worker in range(6):
        assert versions_held(updates, 6 - worker) == versions_at_once(program, worker, updates)


def test_async_1f1b_s_delays_depend_on_the_timing():
    """Stages that are fed slowly go back before they have filled their share, so their gradients are fresh."""
    fed_slowly = Costs(forward=[9, 1, 1, 1], backward=[9, 1, 1, 1])
    assert staleness(recorded("async_1f1b", 4, 8, 2, fed_slowly))[1:] == [0, 0, 0]
    assert staleness(recorded("pipedream", 4, 8, 2, fed_slowly)) == [3, 2, 1, 0]


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda order: [*order[:3], order[4], order[3], *order[5:]], "2 microbatches alive, of at most 1"),
        (
            lambda order: [order[0], order[1], order[2], order[5], order[4], order[3]],
            "belongs to update 2, but update 1",
        ),
    ],
)
def test_an_order_that_breaks_the_delays_is_refused_with_an_arrow(change, problem):
    program = recorded("pipedream", 2, 3, 1)
    last = change([Instruction(op, 0, 1, m) for m in range(3) for op in "FB"])
    with pytest.raises(ScheduleError, match=problem) as refused:
        check(Program(program.stage_map, (program.workers[0], tuple(last))))
    assert "^" in str(refused.value)


def test_weights_that_are_not_made_yet_are_refused():
    program = recorded("pipedream", 2, 2, 2)
    early = replace(program, stage_map=replace(program.stage_map, updates=Updates(every=2, delay=0)))
    with pytest.raises(ScheduleError, match="version 1 is not made yet, the newest is 0"):
        check(early)


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "x"])
def test_an_update_of_no_whole_microbatches_is_refused(every):
    with pytest.raises(ScheduleError, match=rf"one microbatch \(every: {every!r}\); give a whole number from 1 up"):
        Updates(every=every)


@pytest.mark.parametrize("delay", [-1, 0.5, "x"])
def test_a_delay_of_no_whole_updates_is_refused(delay):
    with pytest.raises(ScheduleError, match=rf"number of updates \(delay: {delay!r}\); give a whole number from 0 up"):
        Updates(every=1, delay=delay)


@pytest.mark.parametrize(
    ("alive", "fact"),
    [
        ((1,), r"limits what each stage has alive \(alive: \(1,\), depth: 2\); give one number for each stage"),
        (1, r"limits what each stage has alive \(alive: 1, depth: 2\); give one number for each stage"),
        ((2, 0), r"at least one microbatch alive \(alive: 0\); give a whole number from 1 up"),
    ],
)
def test_limits_of_the_microbatches_alive_are_one_for_each_stage(alive, fact):
    with pytest.raises(ScheduleError, match=fact):
        replace(find("pipedream").stage_map(Shape(2, 2)), alive=alive)


def test_two_stages_on_a_worker_are_refused():
    program = record(find("interleaved"), Shape(4, 2, {"chunks": 2}))
    with pytest.raises(ScheduleError, match="holds 2 stages; put one stage on each worker"):
        check(replace(program, stage_map=replace(program.stage_map, updates=Updates(1))))


def test_the_pipe_is_full_after_as_many_steps_as_it_takes():
    for depth, microbatches in [(4, 1), (4, 4), (8, 3)]:
        steps = steps_to_fill(Shape(depth, microbatches))
        program = recorded("pipedream", depth, microbatches, steps)
        assert staleness(program) == list(range(depth - 1, -1, -1))
        assert staleness(recorded("pipedream", depth, microbatches, steps + 3)) == staleness(program)


@every_asynchronous
@pytest.mark.parametrize("depth, microbatches", [(4, 4), (8, 12)])
def test_the_steady_step_of_a_segment(name, depth, microbatches):
    """A step of N(F+B) seconds, and PipeDream's delays, which are what `async_1f1b` has where no stage is slower."""
    steady_state = steady(find(name), Shape(depth, microbatches), Costs(1, 2))
    assert steady_state.step == pytest.approx(3 * microbatches)
    assert steady_state.staleness == ([1] * depth if name == "pipedream_2bw" else list(range(depth - 1, -1, -1)))


def test_the_command_prices_a_segment_and_says_what_it_settles_at(capsys):
    shape = ["--depth", "4", "--microbatches", "4"]
    assert main(["schedule", "pipedream_2bw", *shape, "--steps", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["weight_copies"] == [2, 2, 2, 2] and told["staleness"] == [1, 1, 1, 1]
    assert told["steps"] == 3 and told["steady_step"] == 12
    assert [len(worker) for worker in told["workers"]] == [2 * 3 * 4] * 4
    assert main(["schedule", "pipedream", *shape]) == 0
    said = capsys.readouterr().out
    assert "4 3 2 1 (versions a worker)" in said and "3 2 1 0 (updates a stage)" in said
    assert main(["schedule", "gpipe", *shape, "--json"]) == 0
    assert not {"steps", "staleness", "steady_step"} & set(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("steps, problem", [("2", "gpipe flushes after every step"), ("0", "steps must be at least 1")])
def test_a_wrong_number_of_steps_is_refused(steps, problem, capsys):
    assert main(["schedule", "gpipe", "--depth", "4", "--microbatches", "4", "--steps", steps]) == 2
    assert problem in capsys.readouterr().err
