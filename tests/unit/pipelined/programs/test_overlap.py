"""Where the pass puts gradient sums: early exactly if their worker still has an idle gap; a schedule's own stay."""

from dataclasses import replace

import pytest

from pipelined.programs.costs import Costs
from pipelined.programs.instructions import Instruction, Program, gradient_sum
from pipelined.programs.overlap import SUM_STARTS, with_sums
from pipelined.programs.plan import Plan
from pipelined.programs.prepare import prepare_group
from pipelined.programs.pricing.price import price
from pipelined.programs.recording import record
from pipelined.schedules import Shape, find, schedule_names


def program(depth, microbatches, name="chimera", pipes=0):
    return record(find(name), Shape(depth, microbatches, {"pipes": pipes}))


def early(program):
    """The (worker, stage) pairs with a sum ahead of another computation."""
    found = set()
    for worker, instructions in enumerate(program.workers):
        last = max((at for at, i in enumerate(instructions) if i.computes), default=0)
        found |= {(worker, i.stage) for i in instructions[:last] if not i.computes}
    return found


def without_sums(program):
    return replace(program, workers=tuple(tuple(i for i in mine if i.computes) for mine in program.workers))


@pytest.mark.parametrize("depth", range(2, 18, 2))
@pytest.mark.parametrize("units", [1, 2, 3])
@pytest.mark.parametrize("costs", [(1, 2), (2, 3), (1, 5)])
def test_with_two_pipes_and_longer_backwards_they_are_the_stages_above_half_the_depth(depth, units, costs):
    """Chimera, section 3.2: no gap follows the last backward of the middle stages."""
    whole = program(depth, units * depth)
    expected = {(w, s) for w in range(depth) for s in whole.stage_map.stages_of(w) if s > depth / 2}
    assert early(with_sums(whole, "gap", Costs(*costs))) == expected


@pytest.mark.parametrize("name, pipes", [("chimera", 2), ("chimera", 4), ("one_f_one_b", 1), ("gpipe", 1)])
@pytest.mark.parametrize("microbatches", [1, 3, 4, 7, 8, 17])
def test_they_are_those_with_a_gap_between_their_last_backward_and_the_worker_s_last(name, pipes, microbatches):
    whole = program(8, microbatches, name, pipes)
    expected = set()
    for worker, done in enumerate(price(whole, Costs(1, 2)).workers):
        for stage in {timed.instruction.stage for timed in done}:
            last = max(timed.end for timed in done if timed.instruction.stage == stage)
            after = sum(timed.end - timed.start for timed in done if timed.start >= last)
            if done[-1].end - last > after:
                expected.add((worker, stage))
    assert early(with_sums(whole, "gap", Costs(1, 2))) == expected


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b"])
def test_with_one_stage_a_worker_nothing_is_early(name):
    assert early(with_sums(program(4, 8, name))) == set()


def test_without_a_bubble_nothing_is_early():
    assert early(with_sums(program(8, 8, pipes=8))) == set()


def test_the_costs_decide_about_gaps():
    """A message on its way leaves a gap before each worker's last backward; a slow first stage fills them all."""
    whole = program(4, 4)
    assert early(with_sums(whole, "gap", Costs(1, 2, p2p=0.5))) == {(0, 3), (1, 2), (2, 2), (3, 3)}
    assert early(with_sums(whole, "gap", Costs(1, [9, 1, 1, 1]))) == set()


def test_rounding_is_no_gap():
    assert early(with_sums(program(4, 4), "gap", Costs(0.1, 0.2))) == {(0, 3), (3, 3)}


@pytest.mark.parametrize("depth", range(2, 18, 2))
@pytest.mark.parametrize("units", [1, 2])
def test_with_whole_units_every_worker_finishes_its_stages_from_the_last_to_the_first(depth, units):
    for done in price(program(depth, units * depth), Costs(1, 2)).workers:
        finished = {timed.instruction.stage: timed.end for timed in done}
        by_time = sorted(finished, key=finished.get)
        assert by_time == sorted(finished, reverse=True)


@pytest.mark.parametrize("sync", SUM_STARTS)
@pytest.mark.parametrize("name", schedule_names())
@pytest.mark.parametrize("microbatches", [4, 8])
def test_every_worker_sums_each_of_its_stages_once_and_computes_as_before(name, sync, microbatches):
    whole = program(4, microbatches, name)
    summed = with_sums(whole, sync)
    assert without_sums(summed) == whole
    for worker, instructions in enumerate(summed.workers):
        stages = sorted(i.stage for i in instructions if not i.computes)
        assert stages == (whole.stage_map.stages_of(worker) if whole.stage_map.updates.flushes else [])


def test_a_sum_stands_after_the_last_gradient_or_at_the_end():
    whole = program(4, 4)
    eager, after = (with_sums(whole, sync).workers[0] for sync in ("eager", "after"))
    assert [repr(i) for i in eager] == "0F0p0 0F1p0 3F2p1 3B2p1 3F3p1 3B3p1 3S 0B0p0 0B1p0 0S".split()
    assert [repr(i) for i in after] == "0F0p0 0F1p0 3F2p1 3B2p1 3F3p1 3B3p1 0B0p0 0B1p0 0S 3S".split()


def test_a_stage_without_a_microbatch_is_summed_at_the_end():
    assert [repr(i) for i in with_sums(program(4, 1), "eager").workers[0]] == ["0F0p0", "0B0p0", "0S", "3S"]


def test_sums_that_the_schedule_placed_stay():
    whole = program(4, 4)
    mine = list(whole.workers[0])
    mine.insert(7, gradient_sum(3))  # after the first of two backwards that follow stage 3's last
    placed = Program(whole.stage_map, (tuple(mine), *whole.workers[1:]))
    for sync in SUM_STARTS:
        assert with_sums(placed, sync).workers[0] == (*mine, Instruction("S", -1, 0, -1))
        assert with_sums(placed, sync).workers[1:] == with_sums(whole, sync).workers[1:]


@pytest.mark.parametrize("microbatches", [4, 8, 12])
def test_errors_of_measured_costs_are_no_gaps(microbatches):
    """Stages that are measured 3 % apart give the gaps of equal stages."""
    whole = program(4, microbatches)
    measured = Costs([1.0, 0.98, 1.01, 0.99], [1.97, 2.02, 2.0, 2.03], p2p=0.01)
    assert early(with_sums(whole, "gap", measured)) == {(0, 3), (3, 3)}


def test_a_plan_s_own_costs_decide_where_its_sums_stand():
    plan = Plan("chimera", 4, 1, 2, 4)
    for costs, expected in [
        (Costs(), {(0, 3), (3, 3)}),
        (Costs(1, 2, p2p=0.5), {(0, 3), (1, 2), (2, 2), (3, 3)}),
        (Costs(1, [9, 1, 1, 1]), set()),
    ]:
        prepared = prepare_group(replace(plan, costs=costs))
        assert early(Program(plan.stage_map, tuple(one.instructions for one in prepared))) == expected
