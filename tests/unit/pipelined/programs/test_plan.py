"""A plan: the ranks of each stage, the numbers of microbatches, and the plan as JSON."""

import json
from dataclasses import replace

import pytest

from pipelined.errors import UsageError
from pipelined.programs.costs import Costs
from pipelined.programs.plan import Plan, PlanError
from pipelined.schedules import ScheduleError


def test_replicas_of_a_stage_span_pipes_and_groups():
    plan = Plan("chimera", depth=4, width=2, microbatch_size=1, microbatches=4)
    assert plan.world_size == 8
    assert plan.holders(0) == (0, 3, 4, 7)
    assert plan.holders(1) == (1, 2, 5, 6)
    assert plan.stages_of(5) == [1, 2]
    assert plan.group_and_worker(6) == (1, 2)


def test_microbatches_are_numbered_group_by_group():
    plan = Plan("gpipe", depth=2, width=3, microbatch_size=5, microbatches=4)
    assert [plan.global_microbatch(g, m) for g in range(3) for m in range(4)] == list(range(12))
    assert plan.batch == 60


def test_an_odd_depth_for_chimera_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="3"):
        Plan("chimera", depth=3, width=1, microbatch_size=1, microbatches=3)


def test_a_count_below_one_is_refused_by_the_flag_s_name():
    with pytest.raises(UsageError, match=r"width must be at least 1 \(it is 0\)"):
        Plan("gpipe", depth=2, width=0, microbatch_size=1, microbatches=1)


@pytest.mark.parametrize(
    "done, evaluate_every, save_every, drain",
    [
        (0, 0, 0, 100),
        (0, 10, 0, 10),
        (10, 10, 0, 20),
        (7, 10, 4, 8),
        (8, 10, 4, 10),
        (96, 0, 40, 100),
        (0, 300, 200, 100),
    ],
)
def test_a_segment_without_a_flush_ends_at_the_first_evaluation_checkpoint_or_end(
    done, evaluate_every, save_every, drain
):
    assert Plan("pipedream_2bw", 2, 1, 1, 4).segment(done, 100, evaluate_every, save_every) == range(done, drain)
    assert Plan("one_f_one_b", 2, 1, 1, 4).segment(done, 100, evaluate_every, save_every) == range(done, done + 1)


def test_segments_without_a_flush_end_at_every_multiple_of_the_numbers_given():
    plan, drains, done = Plan("pipedream_2bw", 2, 1, 1, 4), [], 0
    while done < 60:
        done = plan.segment(done, 60, 9, 4).stop
        drains.append(done)
    assert drains == [number for number in range(1, 61) if not number % 9 or not number % 4 or number == 60]


COSTS = Costs(1.0, [1.5, 2.5], 0.75, [0.5, 1.0], p2p=0.125)


def test_costs_that_are_not_default_travel_with_the_plan_and_make_it_no_other():
    plan = Plan("gpipe", 2, 1, 1, 4)
    measured = replace(plan, costs=COSTS)
    assert measured == plan and hash(measured) == hash(plan)
    assert "costs" not in plan.to_dict()
    assert Plan.of(json.loads(json.dumps(measured.to_dict()))).costs == COSTS


@pytest.mark.parametrize(
    "costs, message",
    [
        (7, "costs is 7"),
        ({"forward": 1.0}, "should have backward, backward_input"),
        ({**COSTS.to_dict(), "forward": [1.0]}, r"cost forward is \[1.0\]"),
        ({**COSTS.to_dict(), "forward": "ab"}, "cost forward is 'ab'"),
        ({**COSTS.to_dict(), "p2p": [1.0, 1.0]}, "cost p2p"),
        ({**COSTS.to_dict(), "backward": [1.0, -1.0]}, "backward must be finite seconds from 0 up .got: -1.0."),
        ({**COSTS.to_dict(), "backward": [1.0, float("nan")]}, "backward must be finite seconds from 0 up .got: nan."),
    ],
)
def test_damaged_costs_of_a_plan_are_refused(costs, message):
    with pytest.raises((TypeError, ScheduleError), match=message):
        Plan.of({**Plan("gpipe", 2, 1, 1, 4).to_dict(), "costs": costs})


def test_a_worker_of_a_team_is_neighbouring_ranks_and_its_pieces_are_held_in_every_group():
    plan = Plan("gpipe", depth=1, width=2, microbatch_size=1, microbatches=4, tensor=3)
    assert plan.world_size == 6
    assert [plan.group_and_worker(rank) for rank in range(6)] == [(0, 0)] * 3 + [(1, 0)] * 3
    assert [plan.member(rank) for rank in range(6)] == [0, 1, 2, 0, 1, 2]
    assert plan.team(4) == (3, 4, 5)
    assert plan.holders(0, member=1) == (1, 4)
    assert plan.holder(1, 0, 0, member=2) == 5
    assert plan.batch == 8


def test_the_ranks_of_a_worker_are_in_the_json_of_a_plan_only_where_they_are_several():
    alone = Plan("gpipe", 1, 1, 1, 4)
    team = replace(alone, tensor=2)
    assert "tensor" not in alone.to_dict() and team.to_dict()["tensor"] == 2
    assert Plan.of(json.loads(json.dumps(team.to_dict()))) == team != alone


def test_a_piece_of_a_stage_is_held_by_the_same_member_in_every_pipe_and_group():
    plan = Plan("chimera", depth=2, width=2, microbatch_size=1, microbatches=2, tensor=3)
    assert plan.world_size == 12
    assert plan.holders(0, member=2) == (2, 5, 8, 11)
    assert [plan.holder(1, pipe, 1, member=1) for pipe in range(2)] == [10, 7]


def test_teams_without_a_flush_are_refused():
    with pytest.raises(PlanError, match=r"only a schedule with a flush.*tensor: 2, schedule: pipedream_2bw"):
        Plan("pipedream_2bw", 1, 1, 1, 4, tensor=2)


def test_knobs_without_names_are_refused():
    with pytest.raises(
        PlanError, match=r"knobs is \['pipes'\], without names; give values by name, as in \{'pipes': 4"
    ):
        Plan("chimera", 4, 1, 1, 4, knobs=["pipes"])


def test_a_misspelt_knob_is_refused_with_the_nearest():
    """It was dropped, and the plan trained the schedule without it."""
    with pytest.raises(ScheduleError, match=r"unknown argument 'pipe'.*did you mean pipes"):
        Plan("chimera", 4, 1, 8, 8, knobs={"pipe": 4})


def test_a_worker_of_one_rank_has_no_split_so_a_plan_is_that_of_its_json():
    plan = Plan("gpipe", 2, 1, 8, 2, layout="megatron")
    assert plan.layout == "" and Plan.of(plan.to_dict()) == plan


def test_more_ranks_than_memory_can_list_are_refused():
    with pytest.raises(ScheduleError, match=r"width is 1000000000 and can be 65536 at most"):
        Plan("gpipe", 2, 10**9, 1, 4)


def test_a_microbatch_may_have_many_rows():
    """Rows of a table are small: they cost neither a stage map nor a check anything."""
    plan = Plan("gpipe", 2, 1, 10**6, 4)
    assert Plan.of(plan.to_dict()) == plan


def test_costs_of_another_number_of_stages_are_refused():
    fact = r"cost backward-input is for other stages \(stages with a cost: 3, depth: 2\); give one number, or one for"
    with pytest.raises(ScheduleError, match=fact):
        Plan("gpipe", 2, 1, 1, 4, costs=Costs(forward=[1, 1], backward_input=[1, 1, 1]))
    assert Plan("gpipe", 2, 1, 1, 4, costs=Costs(forward=[1, 2])).costs.seconds("F", 1) == 2
