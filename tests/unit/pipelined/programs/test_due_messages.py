"""Which message is due by an order, and how long a worker waits for one."""

from dataclasses import replace

import pytest

from collectives import Links
from pipelined.api.laboratory.proof import prove
from pipelined.api.laboratory.simulation import simulate as simulate_described
from pipelined.programs.costs import Costs
from pipelined.programs.due_messages import DueMessages
from pipelined.programs.instructions import Instruction
from pipelined.programs.plan import Plan
from pipelined.programs.prepare import prepare_group
from pipelined.programs.pricing.price import price
from pipelined.programs.recording import record
from pipelined.schedules import find
from pipelined.schedules.chimera_w import PATIENCE
from pipelined.simulation import Machine, StageCosts, Workload, simulate

FIRST, SECOND = Instruction("F", 0, 1, 0), Instruction("I", 0, 1, 0)
HALF = Instruction("W", 0, 1, 0)


def test_an_instruction_is_due_where_no_further_weight_half_came_before_it():
    due = DueMessages([FIRST, HALF, SECOND])
    assert [due.covers(FIRST, halves) for halves in (0, 1)] == [True, True]
    assert [due.covers(SECOND, halves) for halves in (0, 1, 2)] == [False, True, True]


def test_by_no_order_nothing_is_due():
    assert not DueMessages().covers(FIRST, 100)


def simulated(hop, microbatches=4):
    """The instructions of each rank of Chimera-W with messages that take so many seconds, and of its proved order."""
    plan = Plan("chimera_w", 4, 1, 1, microbatches)
    costs = StageCosts(forward=1, backward=2, backward_input=1, backward_weight=1)
    (group,) = simulate(plan, Workload.even(4, costs), Machine(Links(hop, 0, 0))).groups
    return group, record(find("chimera_w"), plan.shape)


@pytest.mark.parametrize("hop", [0.0, 0.5 * PATIENCE, PATIENCE])
@pytest.mark.parametrize("microbatches", [4, 7])
def test_a_message_late_by_its_travel_does_not_change_the_order(hop, microbatches):
    group, proved = simulated(hop / 2, microbatches)
    assert group.program == proved
    assert group.makespan == price(proved, Costs(p2p=hop / 2)).makespan


def test_a_message_that_is_later_finds_that_a_weight_half_has_begun():
    group, proved = simulated(4 * PATIENCE)
    assert group.program != proved


@pytest.mark.parametrize(("depth", "microbatches", "halves"), [(6, 6, (1, 3, 1)), (4, 8, (2, 1, 3))])
def test_a_step_with_free_messages_takes_what_the_proof_says_at_the_same_costs(depth, microbatches, halves):
    forward, backward_input, backward_weight = halves
    costs = {
        "forward": forward,
        "backward": backward_input + backward_weight,
        "backward_input": backward_input,
        "backward_weight": backward_weight,
    }
    shape = {"depth": depth, "microbatches": microbatches, "costs": costs}
    assert simulate_described("chimera_w", **shape).makespan == prove("chimera_w", **shape).makespan


def test_the_order_is_that_of_free_messages_at_the_plan_s_costs():
    """What is late by its travel alone is waited for, so travel must not change the order."""
    costs = Costs(1, 4, 3, 1, p2p=0.3)
    plan = Plan("chimera_w", 6, 1, 1, 6, costs=costs)
    proved = record(find("chimera_w"), plan.shape, replace(costs, p2p=0.0))
    orders = [[i for i in one.instructions if i.computes] for one in prepare_group(plan)]
    assert orders == [*map(list, proved.workers)] != [*map(list, record(find("chimera_w"), plan.shape).workers)]
