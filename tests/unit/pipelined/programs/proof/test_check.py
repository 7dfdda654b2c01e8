"""What the checker refuses, and how it shows the fault; that its verdicts are right is shown in test_deadlock."""

import pytest

from pipelined.programs.costs import Costs
from pipelined.programs.instructions import Instruction, Program, gradient_sum
from pipelined.programs.overlap import with_sums
from pipelined.programs.pricing.price import price
from pipelined.programs.proof.check import check, check_stage_map
from pipelined.programs.recording import record
from pipelined.schedules import ScheduleError, Shape, StageMap, find
from tests.unit.pipelined.programs.damage import with_worker

CHIMERA = record(find("chimera"), Shape(4, 4))
GPIPE = record(find("gpipe"), Shape(2, 2))


def refusal(program):
    with pytest.raises(ScheduleError) as caught:
        check(program)
    return str(caught.value)


def test_a_missing_instruction_is_named_and_pointed_at():
    assert refusal(with_worker(GPIPE, 1, GPIPE.workers[1][:-1])) == (
        "worker 1 lacks 1B1p0 (backward of stage 1, microbatch 1); each needs one F and one B, or F, I and W\n"
        "worker 1 | 1F0p0 1F1p0 1B0p0\n"
        "                             ^ missing: 1B1p0"
    )


def test_a_repeated_instruction_is_pointed_at_where_it_is_once_too_often():
    message = refusal(with_worker(GPIPE, 1, [*GPIPE.workers[1], Instruction("F", 0, 1, 0)]))
    assert "worker 1 has 2 times, not 1, 1F0p0" in message
    assert message.endswith("                                   ^ once too often: 1F0p0")


@pytest.mark.parametrize(
    "position, stage, problem",
    [
        (5, 3, "the gradient of stage 3 is not complete; sum it after 3B3p1, instruction 6"),
        (0, 0, "the gradient of stage 0 is not complete; sum it after 0B1p0, instruction 8"),
        (9, 3, "the gradient of stage 3 is summed already; sum it once"),
        (6, 2, "not held here; the stages of worker 0 are [0, 3]"),
    ],
)
def test_a_sum_in_the_wrong_place_is_refused_with_its_worker_and_stage(position, stage, problem):
    mine = list(with_sums(CHIMERA, "eager").workers[0])
    if position != 9:
        mine = [i for i in mine if i.computes]
    mine.insert(position, gradient_sum(stage))
    message = refusal(with_worker(CHIMERA, 0, mine))
    assert message.startswith(f"worker 0 cannot do {stage}S ({problem})\nworker 0 | 0F0p0") or position == 0
    assert f"({problem})" in message and message.endswith(f" ^ {problem}")


def test_without_a_flush_a_sum_is_refused():
    segment = record(find("pipedream"), Shape(2, 2))
    message = refusal(with_worker(segment, 1, [*segment.workers[1], gradient_sum(1)]))
    problem = "without a flush each update sums the gradients of stage 1; leave the sum out"
    assert f"worker 1 cannot do 1S ({problem})" in message


@pytest.mark.parametrize("sync", ["eager", "gap", "after"])
@pytest.mark.parametrize("microbatches", [1, 4, 5])
def test_what_the_pass_places_is_right(sync, microbatches):
    check(with_sums(record(find("chimera"), Shape(4, microbatches)), sync))


def test_a_deadlock_shows_the_cycle():
    backward_first = [*GPIPE.workers[0][2:], *GPIPE.workers[0][:2]]
    message = refusal(with_worker(GPIPE, 0, backward_first))
    assert message == (
        "the order deadlocks (workers in the cycle: [0]); move one of these\n"
        "worker 0 | 0B0p0 0B1p0 0F0p0 0F1p0\n"
        "           ^ waits for 0F0p0, instruction 2 of worker 0"
    )


def test_a_deadlock_over_two_workers_shows_both():
    mine = list(CHIMERA.workers[0])
    mine[2], mine[7] = mine[7], mine[2]
    message = refusal(with_worker(CHIMERA, 0, mine))
    assert message == (
        "the order deadlocks (workers in the cycle: [0, 1]); move one of these\n"
        "worker 0 | 0F0p0 0F1p0 0B1p0 3B2p1 3F3p1 3B3p1 0B0p0 3F2p1\n"
        "                       ^ waits for 1B1p0, instruction 7 of worker 1\n"
        "worker 1 | 1F0p0 2F2p1 1F1p0 2F3p1 2B2p1 1B0p0 2B3p1 1B1p0\n"
        "                                   ^ waits for 3B2p1, instruction 3 of worker 0"
    )


@pytest.mark.parametrize(
    "instruction, problem",
    [
        (Instruction("X", 0, 0, 0), "unknown op 'X'; known: F, B, I, W"),
        (Instruction("F", 5, 0, 0), "no stage 0 of pipe 5 (stages: 2, pipes: 1)"),
        (Instruction("F", 0, 1, 0), "not held here; stage 1 of pipe 0 is on worker 1"),
        (Instruction("F", 0, 0, 9), "not a microbatch of pipe 0; its own are [0, 1]"),
    ],
)
def test_an_instruction_in_the_wrong_place_is_refused_with_the_reason(instruction, problem):
    message = refusal(with_worker(GPIPE, 0, [instruction, *GPIPE.workers[0]]))
    assert problem in message and message.splitlines()[-1].startswith("           ^ ")


@pytest.mark.parametrize(
    "stage_map, fact",
    [
        (StageMap(2, 2, {(0, 0): 0}, ((0,),)), "places 1 .* pairs of 2 .*pipe 0, stage 1"),
        (StageMap(1, 1, {(0, 0): 3}, ((0,),)), r"on worker 3 \(workers: 1\)"),
        (StageMap(1, 2, {(0, 0): (0, 1)}, ((0,),)), r"on worker \(0, 1\)"),
        (StageMap(1, 1, {(0, 0): 0}, ((0, 0),)), "microbatch 0 is in 2 places"),
        (StageMap(1, 1, {(0, 0): 0}, ((0, 2),)), "microbatch 1 is in 0 places"),
    ],
)
def test_a_stage_map_that_does_not_add_up_is_refused(stage_map, fact):
    with pytest.raises(ScheduleError, match=fact):
        check_stage_map(stage_map)


def test_an_empty_program_lacks_everything():
    assert "lacks 0F0p0" in refusal(Program(GPIPE.stage_map, ((), ())))


def test_more_alive_than_the_budget_is_pointed_at_where_it_begins():
    check(CHIMERA, budget=4)
    with pytest.raises(ScheduleError) as caught:
        check(CHIMERA, budget=3)
    assert str(caught.value) == (
        "worker 1 has more alive than the budget (microbatches: 4, budget: 3); "
        "raise `budget=`, or choose a schedule that keeps fewer\n"
        "worker 1 | 1F0p0 2F2p1 1F1p0 2F3p1 2B2p1 1B0p0 2B3p1 1B1p0\n"
        "                             ^ 4 alive from here"
    )


def test_the_budget_counts_halves_as_halves():
    check(record(find("chimera"), Shape(4, 4, {"scale": "backward-halving"})), budget=4)
    with pytest.raises(ScheduleError, match=r"microbatches: 3.5, budget: 3\)"):
        check(record(find("chimera"), Shape(4, 4, {"scale": "backward-halving"})), budget=3)


@pytest.mark.parametrize("order, alive", [("F0 I0 W0 F1 I1 W1", 1), ("F0 I0 F1 I1 W0 W1", 2), ("F0 F1 I0 W0 I1 W1", 2)])
def test_a_microbatch_is_alive_until_its_weight_half_is_done(order, alive):
    """With the input half as the end, none of these would have more than the budget."""
    alone = tuple(Instruction(word[0], 0, 0, int(word[1])) for word in order.split())
    program = Program(StageMap(1, 1, {(0, 0): 0}, ((0, 1),)), (alone,))
    check(program, budget=alive)
    with pytest.raises(ScheduleError, match=rf"microbatches: {alive}, budget: {alive - 1}\)"):
        check(program, budget=alive - 1)


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", "chimera", "dualpipe", "zb_v", "chimera_w"])
def test_the_budget_is_the_peak_of_the_priced_timeline(name):
    program = record(find(name), Shape(4, 8))
    peak = max(price(program, Costs()).peak_activations)
    check(program, budget=peak)
    with pytest.raises(ScheduleError, match="more alive than the budget"):
        check(program, budget=peak - 1)
