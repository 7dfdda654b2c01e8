"""The simulator, against the pricer, closed forms of whole steps, and small steps worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Links, ProblemSize
from collectives.algorithms import ALL_REDUCE
from pipelined.errors import UsageError
from pipelined.programs.costs import Costs
from pipelined.programs.plan import Plan
from pipelined.programs.pricing.price import price
from pipelined.programs.recording import record
from pipelined.schedules import find
from pipelined.simulation import Machine, Parameters, StageCosts, Workload, simulate
from pipelined.simulation.job import with_costs
from pipelined.simulation.traffic import totals_bytes

NAMES = ("chimera", "dualpipe", "gems", "gpipe", "interleaved", "one_f_one_b", "zb_h1", "zb_v")


def step(plan, machine=None, parameter_bytes=0, sync="gap", recompute=False, **costs):
    workload = Workload.even(plan.depth, StageCosts(**costs), parameter_bytes)
    return simulate(plan, workload, machine, sums_start=sync, recompute=recompute)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(st.sampled_from([2, 4, 6]), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3))
def test_a_group_with_free_links_does_what_the_pricer_says(name, depth, rounds, backward, alpha):
    plan = Plan(name, depth, 1, 1, rounds * depth)
    costs = Costs(1, 2 * backward, backward, backward, p2p=alpha)
    simulated = step(plan, Machine(Links(alpha, 0, 0)), forward=1, backward=2 * backward)
    assert simulated.groups == (price(record(find(name), plan.shape, costs), costs),)


@pytest.mark.parametrize("depth, microbatches", [(4, 4), (4, 10), (6, 6)])
def test_a_group_with_free_messages_runs_a_dynamic_schedule_as_it_was_proved(depth, microbatches):
    plan = Plan("chimera_w", depth, 1, 1, microbatches)
    assert step(plan, forward=1, backward=2).groups == (price(record(find("chimera_w"), plan.shape), Costs()),)


@pytest.mark.parametrize("depth, microbatches, seconds", [(4, 4, 16), (4, 8, 30), (6, 6, 26), (8, 16, 66)])
def test_every_group_of_chimera_takes_its_makespan(depth, microbatches, seconds):
    simulated = step(Plan("chimera", depth, 3, 1, microbatches))
    assert [group.makespan for group in simulated.groups] == [seconds] * 3
    assert simulated.step_s == simulated.makespan == seconds
    assert simulated.bubble_ratio == pytest.approx(1 - 3 * microbatches / seconds)


@pytest.mark.parametrize(
    "row, starts",
    [
        ("0F0,1F0,0F1,1F1,1B0,1B1,0B0,0B1", {(0,): 12, (1,): 14}),  # without a gap both follow the flush
        ("0F0,1F0,0F1,1F1,1B0,1B1,1REDUCE_GRAD,0B0,0B1", {(0,): 12, (1,): 8}),
        ("0F0,1F0,0F1,1F1,1B0,1B1,0B0,1REDUCE_GRAD,0B1", {(0,): 12, (1,): 10}),
    ],
)
def test_a_sum_starts_where_the_schedule_says(tmp_path, row, starts):
    """Two groups of one worker with two stages; a sum takes 2 s, and a rank takes part in one at a time."""
    (tmp_path / "own.csv").write_text(row)
    plan, machine = Plan(str(tmp_path / "own.csv"), 2, 2, 1, 2), Machine(Links(1, 0, 0))
    assert {s.key: s.start for s in step(plan, machine, 4, forward=1, backward=2).sums} == starts


@pytest.mark.parametrize("width", [2, 3, 4, 8])
def test_data_parallelism_is_computing_and_one_sum(width):
    plan, links, nbytes = Plan("gpipe", 1, width, 1, 5), Links(1e-3, 1e-6, 1e-7), 4096
    simulated = step(plan, Machine(links), nbytes, update=0.5)
    summed = ALL_REDUCE.forms("rabenseifner").seconds(ProblemSize.on_one_node(width, nbytes), links)
    totals = ProblemSize.on_one_node(width, totals_bytes(plan, Workload.even(1, StageCosts(), nbytes)))
    agreed = ALL_REDUCE.closed_forms_for("auto", totals, links).seconds(totals, links)
    assert simulated.exposed_sums == pytest.approx(summed)
    assert simulated.step_s == pytest.approx(15 + summed + agreed + 0.5)


@pytest.mark.parametrize(("beside", "seconds"), [(0.0, 15.5), (14.0, 15.5), (20.0, 20.5)])
def test_a_delayed_update_runs_beside_the_step_and_ends_before_its_own(beside, seconds):
    """Five microbatches of three seconds; what is longer than these is waited for."""
    assert step(Plan("gpipe", 1, 1, 1, 5), Machine(), update=0.5, delayed_update=beside).step_s == seconds


def test_a_delayed_update_takes_its_share_of_the_cores():
    assert step(Plan("gpipe", 1, 1, 1, 5), Machine(cores=1), update=0.5, delayed_update=10.0).step_s == 25.5


@pytest.mark.parametrize(("node", "seconds"), [(0, 6), (4, 6), (2, 33), (1, 60)])
def test_a_ring_of_sums_waits_for_the_links_between_nodes_only_where_it_crosses_them(node, seconds):
    """Six messages one after another over four ranks; of two nodes of two ranks they cross every second time."""
    machine = Machine(Links(1, 0, 0), Links(10, 0, 0), node=node)
    assert machine.sum_seconds("ring", (0, 1, 2, 3), 4096) == seconds
    simulated = simulate(
        Plan("gpipe", 1, 4, 1, 1), Workload.even(1, StageCosts(), 4096), machine, sums_start="gap", all_reduce="ring"
    )
    assert simulated.exposed_sums == pytest.approx(seconds)


SUM_OF_ONE_SECOND = Links(0, 0.25, 0)  # of 4 bytes, between two ranks


@pytest.mark.parametrize(
    "sync, interference, makespan, sums",
    [
        ("after", 0.0, 6, [((0,), 6, 7), ((1,), 7, 8)]),
        ("gap", 0.0, 6, [((0,), 6, 7), ((1,), 7, 8)]),
        ("eager", 0.0, 6, [((1,), 4, 5), ((0,), 6, 7)]),
        ("eager", 0.5, 6.5, [((1,), 4, 5), ((0,), 6.5, 7.5)]),
    ],
)
def test_when_the_sums_of_two_stages_begin(sync, interference, makespan, sums):
    """Two workers, each with both stages and no gap: F F B B, the last backward of stage 0 from 4 to 6.

    A sum under way in its first second takes half of that second away, which is made up for at its end.
    """
    machine = Machine(SUM_OF_ONE_SECOND, interference=interference)
    simulated = step(Plan("chimera", 2, 1, 1, 2), machine, 4, sync)
    assert [(done.key, done.start, done.end) for done in simulated.sums] == sums
    assert simulated.makespan == makespan


def test_a_sum_before_a_gap_is_hidden_in_it():
    """Depth 4: stage 3's last backward ends at 12 of 16, and its worker waits from there to 14."""
    simulated = {
        sync: step(Plan("chimera", 4, 1, 1, 4), Machine(SUM_OF_ONE_SECOND), 4, sync) for sync in ("gap", "after")
    }
    assert simulated["gap"].makespan == simulated["after"].makespan == 16
    assert (simulated["gap"].exposed_sums, simulated["after"].exposed_sums) == (1, 2)


def test_messages_queue_on_their_link_and_arrive_alpha_later():
    """Forwards end at 1, 2, 3; each message holds the link for 3 seconds, and takes 5 more."""
    simulated = step(Plan("gpipe", 2, 1, 1, 3), Machine(Links(5, 0.5, 0)), message_bytes=6)
    forwards = [timed.start for timed in simulated.groups[0].workers[1] if timed.instruction.op == "F"]
    assert forwards == [1 + 3 + 5, 4 + 3 + 5, 7 + 3 + 5]


def test_links_between_nodes_cost_what_they_cost():
    machine = Machine(Links(1, 0, 0), Links(10, 0, 0), node=2)
    simulated = step(Plan("gpipe", 4, 1, 1, 1), machine)
    assert [worker[0].start for worker in simulated.groups[0].workers] == [0, 2, 13, 15]


@pytest.mark.parametrize("name", ["chimera", "one_f_one_b", "zb_h1"])
def test_on_one_core_a_step_is_all_its_work(name):
    assert step(Plan(name, 4, 2, 1, 4), Machine(cores=1)).makespan == pytest.approx(2 * 4 * 4 * 3)


@pytest.mark.parametrize("name", NAMES)
def test_as_many_cores_as_ranks_are_enough(name):
    plan = Plan(name, 4, 2, 1, 4)
    assert step(plan, Machine(cores=plan.world_size)).groups == step(plan).groups


@given(st.integers(1, 8), st.sampled_from(["gpipe", "one_f_one_b", "chimera", "chimera_w"]))
def test_fewer_cores_make_no_step_shorter_than_its_work_nor_than_with_all(cores, name):
    plan = Plan(name, 4, 2, 1, 4)
    makespan = step(plan, Machine(cores=cores)).makespan
    assert makespan >= max(96 / cores, step(plan).makespan) - 1e-9


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b"])
def test_recomputation_costs_a_forward_more_each_backward(name):
    assert step(Plan(name, 4, 1, 1, 6), recompute=True, forward=3, backward=5).makespan == (6 + 4 - 1) * (3 + 3 + 5)


def test_halved_microbatches_cost_and_send_half():
    plan = Plan("chimera", 4, 1, 2, 4, {"scale": "backward-halving"})
    simulated = step(plan, message_bytes=10, activation_bytes=8)
    assert simulated.makespan == 4 * 3 + 1 * (1 + 2) / 2
    assert [memory.activations for memory in simulated.memory] == [8 * 7 / 2, 8 * 8 / 2, 8 * 8 / 2, 8 * 7 / 2]


def test_stages_cost_what_each_costs():
    stages = [StageCosts(forward=f, backward=b, update=u) for f, b, u in [(1, 10, 5), (2, 20, 0), (3, 30, 100)]]
    simulated = simulate(Plan("gpipe", 3, 1, 1, 1), Workload(stages))
    assert (simulated.makespan, simulated.step_s) == (66, 166)


def test_many_ranks_are_all_there():
    """Of 128 ranks each group is like the first, and every stage is summed over its two holders in each group."""
    simulated = step(Plan("chimera", 8, 16, 1, 8), Machine(Links(1e-6, 1e-9, 0)), 4000, message_bytes=1000)
    assert len(simulated.memory) == len(simulated.busy) == 128
    assert {group.workers for group in simulated.groups} == {simulated.groups[0].workers}
    assert {done.key: len(done.ranks) for done in simulated.sums} == {(stage,): 32 for stage in range(8)}


@pytest.mark.parametrize(
    "plan, sync, all_reduce, message",
    [
        (Plan("gpipe", 2, 1, 1, 1), "soon", "ring", "unknown sync 'soon'; known: eager, gap, after"),
        (Plan("gpipe", 3, 1, 1, 1), "gap", "ring", r"costs: 2, depth: 3\); give each stage its own"),
        (Plan("gpipe", 2, 1, 1, 1), "gap", "tree", "unknown all-reduce algorithm 'tree'"),
        (Plan("gpipe", 2, 1, 1, 1), "gap", "native", "no closed form; take hierarchical, multi_ring, rabenseifner"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_the_remedy(plan, sync, all_reduce, message):
    with pytest.raises(UsageError, match=message):
        simulate(plan, Workload.even(2, StageCosts()), sums_start=sync, all_reduce=all_reduce)


def test_sums_stand_in_the_gaps_of_the_plan_s_own_costs():
    """A slow first stage leaves no gap after stage 3's last backward, so its sum follows the flush."""
    plan, stages = Plan("chimera", 4, 1, 1, 4), [StageCosts(backward=seconds) for seconds in (9, 1, 1, 1)]
    workload, machine = Workload(stages, [Parameters((stage,), 8) for stage in range(4)]), Machine()
    itself = with_costs(plan, workload, machine)
    assert itself.costs == Costs([1.0] * 4, [9, 1, 1, 1], [4.5, 0.5, 0.5, 0.5], [4.5, 0.5, 0.5, 0.5])

    def is_early(plan):
        found = simulate(plan, workload, machine)
        (start,) = (done.start for done in found.sums if done.key == (3,))
        return start < found.makespan

    assert is_early(plan) and not is_early(itself)


def test_the_costs_of_a_job_have_its_longest_message_and_recomputation():
    """Stage 0 to 1 takes 1 s in a codec, 2 s and 8 bytes of 0.5 s; 1 to 2 has no codec and 2 bytes; halves pay half."""
    stages = [StageCosts(message_bytes=8, coding=1), StageCosts(message_bytes=2, recomputed_forward=0.5), StageCosts()]
    costs = with_costs(Plan("gpipe", 3, 1, 2, 4), Workload(stages), Machine(Links(2, 0.5, 0)), True).costs
    assert costs == Costs([1.0] * 3, [3.0, 2.5, 3.0], [2.0, 1.5, 2.0], [1.0] * 3, p2p=7.0)
    alone = with_costs(Plan("gpipe", 1, 2, 1, 4), Workload(stages[:1]), Machine(Links(2, 0.5, 0)))
    assert alone.costs.p2p == 0.0


@pytest.mark.parametrize("nbytes, name", [(4096, "rabenseifner"), (4096 * 16, "ring")])
def test_a_choice_by_size_is_simulated_as_the_algorithm_of_that_size(nbytes, name):
    """Training takes such a text, and writes one where it has measured; simulating it was refused."""
    plan, workload = Plan("gpipe", 1, 4, 1, 1), Workload.even(1, StageCosts(), nbytes)
    chosen = [simulate(plan, workload, all_reduce=text) for text in ("rabenseifner:16384,ring", name)]
    assert chosen[0] == chosen[1]
