"""What a call leaves open of its arrangement follows from the ranks and the schedule."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipelined.api.arrangement import RequestedArrangement, require_ranks
from pipelined.api.data.feed import job_feed
from pipelined.errors import UsageError
from pipelined.process.launch import ALONE
from pipelined.programs.plan import Plan, PlanError

BATCHES = [(torch.zeros(16, 4), torch.zeros(16, 4))]


def planned(ranks, **given):
    return RequestedArrangement(**given).plan(replace(ALONE, world_size=ranks), job_feed(BATCHES))


@pytest.mark.parametrize(
    ("ranks", "given", "depth", "width"),
    [
        (4, {}, 4, 1),
        (4, {"width": 2}, 2, 2),
        (4, {"tensor": 2}, 1, 2),
        (8, {"tensor": 2, "depth": 2}, 2, 2),
        (4, {"tensor": 2, "width": 1}, 2, 1),
        (8, {"tensor": 2, "width": 2, "schedule": "chimera"}, 2, 2),
        (4, {"tensor": 2, "width": 1, "schedule": "zb_v"}, 4, 1),
        (4, {"tensor": 2, "schedule": "zb_v"}, 2, 2),
        (4, {"tensor": 2, "schedule": "chimera"}, 2, 1),
        (4, {"tensor": 2, "schedule": "zb_v", "depth": 2}, 2, 2),
        (8, {"tensor": 2, "schedule": "interleaved", "depth": 4, "knobs": {"chunks": 2}}, 4, 2),
    ],
)
def test_all_ranks_take_part_in_a_plan_of_open_sizes(ranks, given, depth, width):
    """A team had one stage wherever the depth was open, so that ranks were left over, and chimera refused it."""
    plan = planned(ranks, **given)
    assert (plan.depth, plan.width, plan.world_size) == (depth, width, ranks)


@pytest.mark.parametrize(
    ("ranks", "given", "chunks"),
    [(2, {}, 2), (1, {}, 4), (4, {}, 1), (4, {"width": 2}, 2), (4, {"tensor": 2}, 2), (None, {}, 1)],
)
def test_the_stages_of_interleaved_are_divided_among_the_ranks_that_were_started(ranks, given, chunks):
    """With a depth it was 1F1B, and refused on fewer ranks than stages."""
    plan = planned(ranks, schedule="interleaved", depth=4, **given)
    assert (plan.knobs.get("chunks", 1), plan.world_size) == (chunks, ranks or 4)


def test_chunks_that_are_given_stay():
    assert planned(2, schedule="interleaved", depth=4, knobs={"chunks": 1}).world_size == 4


def test_numpys_whole_numbers_are_taken_as_those_of_python():
    """They passed the check of whole numbers, and failed in the arithmetic after it."""
    one, two = np.int64(1), np.int64(2)
    given = {"depth": two, "width": one, "microbatches": two, "schedule": "chimera", "knobs": {"pipes": two}}
    plan = planned(2, **given)
    assert plan == planned(2, depth=2, width=1, microbatches=2, schedule="chimera", knobs={"pipes": 2})
    assert json.loads(json.dumps(plan.to_dict())) == plan.to_dict()


def test_without_a_launcher_there_is_one_pipeline_of_teams():
    plan = planned(None, tensor=2, schedule="zb_v", depth=4)
    assert (plan.width, plan.world_size) == (1, 4)


def test_ranks_that_make_no_whole_teams_are_refused():
    with pytest.raises(PlanError, match=r"tensor: 2, ranks: 3\); start a multiple of 2 ranks"):
        planned(3, tensor=2)


@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize("given", [{}, {"depth": 2}, {"tensor": 2}])
def test_a_table_sets_the_depth_and_the_microbatches_that_a_call_leaves_open(ranks, given, tmp_path):
    """A call took twice the depth in microbatches, so that most tables were refused."""
    (path := tmp_path / "own.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    plan = planned(ranks and ranks * given.get("tensor", 1), schedule=str(path), **given)
    assert (plan.depth, plan.width, plan.microbatches, plan.rows) == (2, 1, 2, 8)


def test_a_table_of_several_stages_on_each_worker_is_taken_as_it_is(tmp_path):
    (path := tmp_path / "own.csv").write_text("0F0,1F0,2F0,2B0,1B0,0B0\n")
    plan = planned(2, schedule=str(path), tensor=2)
    assert (plan.depth, plan.width, plan.microbatches) == (3, 1, 1)


@pytest.mark.parametrize(
    ("ranks", "remedy"), [(8, "start 4 ranks, or give width=2"), (6, "start 4 ranks, or choose another depth or width")]
)
def test_a_plan_for_fewer_ranks_than_were_started_says_which_width_takes_all(ranks, remedy):
    """A table sets the depth: with more teams than it has workers only a width takes all of them."""
    plan = Plan("gpipe", 2, 1, 4, 2, tensor=2)
    with pytest.raises(UsageError, match=rf"\(started: {ranks}, needed: 4\); {remedy}$"):
        require_ranks(plan, replace(ALONE, world_size=ranks))
