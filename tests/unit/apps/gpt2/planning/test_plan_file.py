"""`--plan`: what comes from the plan, what flags may say beside it, and how a run tells of drift."""

from dataclasses import replace
from pathlib import Path

import pytest

from apps.common.run.report import compare_with_prediction
from apps.gpt2.config import GPT2Flags
from apps.gpt2.job import resolve
from pipelined.errors import UsageError
from pipelined.planner import PlanFile, read_plan, write_plan
from pipelined.programs.costs import Costs
from pipelined.programs.plan import Plan

COSTS = Costs(1.0, [2.0, 3.0, 2.5])
PLAN = Plan("one_f_one_b", 3, 2, 4, 6, costs=COSTS)


@pytest.fixture
def path(tmp_path):
    model = resolve(GPT2Flags(), 1).model
    identity = {**model.identity(), "seq": 64}
    write_plan(
        tmp_path / "plan.json",
        PlanFile(plan=PLAN, recompute=True, model=identity, step_s=0.5, memory=(1.0,) * 6, why="so", found={}),
    )
    return tmp_path / "plan.json"


def test_the_plan_is_run_as_it_is_written(path):
    job = resolve(GPT2Flags(plan=path), 6)
    assert (job.plan, job.config.recompute, job.expected_s) == (PLAN, True, 0.5)
    assert job.plan.costs == COSTS, "they do not count where plans are compared"
    assert job.reason == f"{path}: so"


def test_flags_may_repeat_what_the_plan_says(path):
    asked = GPT2Flags(plan=path, schedule="one_f_one_b", depth=3, width=2, microbatch=4, batch=48, recompute=True)
    assert resolve(asked, 6).plan == PLAN


@pytest.mark.parametrize(
    ("flags", "ranks", "message"),
    [
        ({"depth": 2}, 6, r"--depth 2 is not what .*plan.json says \(3\); leave the flag out"),
        ({"batch": 32}, 6, r"--batch 32 is not what .* says \(48\)"),
        ({"schedule": "gpipe"}, 6, "--schedule gpipe is not what"),
        ({}, 4, r"planned: 6, ranks: 4\); start 6 ranks"),
        ({"layers": 8}, 6, r"another model \(layers: 4, here: 8\)"),
        ({"seq": 32}, 6, r"another model \(seq: 64, here: 32\)"),
    ],
)
def test_what_the_plan_does_not_say_is_refused(path, flags, ranks, message):
    with pytest.raises(UsageError, match=message):
        resolve(GPT2Flags(plan=path, **flags), ranks)


def test_the_plan_in_the_documents_is_one():
    assert resolve(GPT2Flags(plan=Path("docs/examples/plan.json")), 4).expected_s


@pytest.mark.parametrize(
    ("taken", "told", "warns"),
    [
        ([9.0, 1.0, 1.0, 1.05], "a step took 1000.0 ms, planned 1000.0 ms: +0%", False),
        ([9.0, 1.09], "+9%", False),
        ([9.0, 1.2, 1.2], "+20%; the plan's costs are not those of this run", True),
        ([0.5], "-50%; the plan's", True),
    ],
)
def test_drift_is_reported_and_called_by_its_name_beyond_a_tenth(taken, told, warns):
    text = compare_with_prediction(1.0, taken)
    assert told in text and ("plan again" in text) == warns


def test_a_plan_with_teams_says_how_they_split_the_model(path):
    planned = read_plan(path)
    split = "c_attn=1.2.1,attn.c_proj=1.1.2,c_fc=2.1.1,mlp.c_proj=2.1.1,wte=1.2.1"
    plan = Plan("gpipe", 1, 3, 4, 4, tensor=2, layout=split)
    write_plan(path, replace(planned, plan=plan))
    job = resolve(GPT2Flags(plan=path), 6)
    assert (job.plan, job.config.tensor, job.factors["c_fc"]) == (plan, 2, (2, 1, 1))
    assert resolve(GPT2Flags(plan=path, tensor=2, layout=split), 6).plan == plan
    with pytest.raises(UsageError, match=r"--layout .* is not what .* says"):
        resolve(GPT2Flags(plan=path, layout="megatron"), 6)
    write_plan(path, replace(planned, plan=replace(plan, depth=3, width=1)))
    assert resolve(GPT2Flags(plan=path), 6).plan.depth == 3
