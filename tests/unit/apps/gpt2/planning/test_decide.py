"""What is left open is planned before the first step, or stays as the rule has it; what was given is not touched."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from apps.common.flags.run_flags import AUTO_PLAN
from apps.gpt2.config import GPT2Flags
from apps.gpt2.job import resolve
from apps.gpt2.planning import decide as decisions
from apps.gpt2.planning.decide import DecidedPlan, decide_job, recorded_candidate
from apps.gpt2.planning.plan_file import is_open
from pipelined.planner import trial
from pipelined.planner.candidates import Candidate
from pipelined.planner.decide import Decision
from pipelined.planner.measured_search import MeasuredSearch
from pipelined.planner.plan_search import search
from pipelined.process.launch import ALONE
from pipelined.programs.plan import Plan
from pipelined.schedules import ScheduleError
from pipelined.state.checkpoints import checkpoint
from tests.launching import ROOT
from tests.unit.pipelined.planner.test_plan_search import request
from tests.unit.pipelined.planner.toys import Toy
from transports.local import world

FEW = GPT2Flags(steps=3)


def decided(job):
    """On all ranks of this process."""

    async def every():
        return await asyncio.gather(*(decide_job(one, job, ALONE) for one in world(job.plan.world_size)))

    first, *others = asyncio.run(every())
    assert all(other == first for other in others)
    return first


@pytest.mark.parametrize(
    ("config", "left_open"),
    [
        (GPT2Flags(), True),
        (GPT2Flags(batch=64, steps=3, layers=2), True),
        (GPT2Flags(plan=AUTO_PLAN, depth=2), True),
        (GPT2Flags(depth=2), False),
        (GPT2Flags(recompute=True), False),
        (GPT2Flags(plan=Path("plan.json")), False),
    ],
)
def test_a_run_is_planned_where_its_arrangement_is_open(config, left_open):
    assert is_open(config) == left_open


def test_what_was_given_is_run_untouched():
    job = resolve(GPT2Flags(depth=2), 2)
    assert decided(job) is job


@pytest.mark.parametrize(("ranks", "why"), [(1, "one rank"), (2, "3 steps"), (7, "3 steps")])
def test_the_rule_stands_with_a_reason_where_measuring_cannot_pay(ranks, why):
    job, ruled = decided(resolve(FEW, ranks)), resolve(FEW, ranks)
    assert (job.plan, job.expected_s) == (ruled.plan, None)
    assert job.reason.startswith(ruled.reason) and why in job.reason


def test_what_is_decided_is_in_the_resolved_configuration():
    plain = decided(resolve(FEW, 2)).to_dict()
    assert (plain["schedule"], plain["depth"], plain["pipes"], plain["recompute"]) == ("chimera", 2, 0, False)


def save(path, job):
    """A checkpoint that holds no tensor, of a run of this job."""
    shard = checkpoint.write_shard(path, 1, 0, 1, {})
    return checkpoint.commit(path, checkpoint.Meta(1, job.model.identity(), job.to_dict()), [shard], 1)


def test_a_resumed_run_goes_on_with_the_arrangement_that_was_decided(tmp_path):
    before = replace(resolve(FEW, 4), plan=Plan("chimera", 2, 2, 4, 4))
    path = save(tmp_path, before)
    job = decided(resolve(replace(FEW, checkpoint=tmp_path, resume="auto"), 4))
    assert job.plan == before.plan and job.reason == f"as in {path}"


def test_a_resumed_run_on_other_ranks_or_another_batch_is_arranged_anew(tmp_path):
    save(tmp_path, resolve(FEW, 4))
    for config, ranks in ((FEW, 2), (replace(FEW, batch=64), 4)):
        assert "as in" not in decided(resolve(replace(config, checkpoint=tmp_path, resume="auto"), ranks)).reason


@pytest.mark.parametrize(("layout", "kept"), [("data", True), ("megatron", False), (None, True)])
def test_a_resumed_run_with_a_named_layout_goes_on_with_no_other(tmp_path, monkeypatch, layout, kept):
    team = replace(FEW, plan=AUTO_PLAN, tensor="auto", checkpoint=tmp_path, resume="auto")
    before = Plan("gpipe", 1, 1, 16, 2, tensor=2, layout="data")
    config = replace(FEW, tensor=2, layout="data", schedule="gpipe")
    path = save(tmp_path, replace(resolve(config, 2), plan=before))

    async def measured(*arguments):
        return Decision(Candidate(before), "measured")

    monkeypatch.setattr(decisions, "_decide_by_measuring", measured)
    assert decided(resolve(replace(team, layout=layout), 2)).reason == (f"as in {path}" if kept else "measured")


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ({}, True),
        ({"depth": 2, "schedule": "chimera", "width": 2}, True),
        ({"depth": 4}, False),
        ({"schedule": "gpipe"}, False),
        ({"recompute": True}, False),
        ({"knobs": {"scale": "backward-halving"}}, False),
        ({"tensor": 2}, False),
        ({"tensor": "auto", "plan": None}, True),
        ({"tensor": "auto", "plan": None, "microbatches": 8}, False),
    ],
)
def test_flags_that_a_resumed_run_gives_bind_its_plan(tmp_path, monkeypatch, flags, kept):
    """`--plan auto --resume auto --depth 4` went on with the saved depth, and said nothing."""
    before = replace(resolve(FEW, 4), plan=Plan("chimera", 2, 2, 4, 4))
    path = save(tmp_path, before)

    async def measured(*arguments):
        return Decision(Candidate(Plan("gpipe", 4, 1, 4, 8)), "measured")

    monkeypatch.setattr(decisions, "_decide_by_measuring", measured)
    monkeypatch.setattr(decisions, "reason_not_to_measure", lambda *arguments, **keywords: None)
    config = replace(FEW, plan=AUTO_PLAN, checkpoint=tmp_path, resume="auto")
    assert decided(resolve(replace(config, **flags), 4)).reason == (f"as in {path}" if kept else "measured")


def test_what_a_checkpoint_says_is_read_as_written():
    plain = json.loads(json.dumps(resolve(GPT2Flags(depth=2, recompute=True), 2).to_dict()))
    assert recorded_candidate(plain) == Candidate(Plan("chimera", 2, 1, 16, 2), recompute=True)
    for damage in ({"depth": "2"}, {"depth": 3}, {"schedule": "no_such"}, {"chunks": None}):
        assert recorded_candidate({**plain, **damage}) is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["depth", "width", "microbatches"])
def test_a_recorded_size_that_could_never_be_laid_out_is_not_taken(name):
    """Rank 0 laid it out, without end, while the others waited."""
    plain = resolve(GPT2Flags(depth=2), 2).to_dict()
    assert recorded_candidate(plain) is not None
    assert recorded_candidate({**plain, name: 100_000_000}) is None
    assert recorded_candidate({**plain, "depth": 60_000, name: 60_000}) is None or name == "depth"


def test_a_schedule_of_one_s_own_is_run_when_the_command_line_names_it_and_never_for_a_checkpoint_s_word(tmp_path):
    """Reading a manifest executed any file that it named."""
    (tmp_path / "evil plan.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    own = str(tmp_path / "evil plan.py")
    shard = checkpoint.write_shard(tmp_path, 1, 0, 1, {})
    job, plain = resolve(FEW, 2), json.loads(json.dumps(resolve(GPT2Flags(depth=2), 2).to_dict()))
    meta = checkpoint.Meta(1, job.model.identity(), {**plain, "schedule": own})
    checkpoint.commit(tmp_path, meta, [shard], 1)
    with pytest.raises(ScheduleError, match=rf"not one of this project's.*give --schedule '{own}' on the"):
        decided(resolve(replace(FEW, checkpoint=tmp_path, resume="auto"), 2))
    assert recorded_candidate(meta.config) is None
    assert not (tmp_path / "ran").exists()
    pairs = str(ROOT / "docs" / "examples" / "pairs.py")
    assert recorded_candidate({**plain, "schedule": pairs}, pairs) == Candidate(Plan(pairs, 2, 1, 16, 2))


def test_a_schedule_that_the_command_line_names_is_planned_for_and_resumed(tmp_path, monkeypatch):
    """Both were refused, with the remedy to name it on the command line."""
    own = str(ROOT / "docs" / "examples" / "gems.py")
    config = replace(FEW, plan=AUTO_PLAN, schedule=own)
    toy = Toy(batch=resolve(config, 2).plan.batch, fixed={"schedule": own})

    async def searched(search_of_a_run, transport):
        return None if transport.rank else (await asyncio.to_thread(search, request(toy, 2)), {})

    async def untried(transport, model, launch, result, most, progress):
        return result

    monkeypatch.setattr(MeasuredSearch, "run", searched)
    monkeypatch.setattr(trial, "try_best", untried)
    job = decided(resolve(config, 2))
    assert job.plan.schedule == own
    path = save(tmp_path, job)
    again = decided(resolve(replace(config, checkpoint=tmp_path, resume="auto"), 2))
    assert (again.plan, again.reason) == (job.plan, f"as in {path}")


def test_no_stage_of_a_rank_is_printed_before_it_is_decided():
    job = resolve(GPT2Flags(), 4)
    decided = DecidedPlan(job)
    assert decided.stages_of(3) == []
    decided.decide(job.plan)
    assert decided.stages_of(3) == [0, 3] == DecidedPlan(resolve(GPT2Flags(depth=4), 4)).stages_of(3)
