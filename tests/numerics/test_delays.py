"""Pipelines without a flush give what a plain loop gives that takes gradients at old weights; and they end together."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipelined.programs.plan import PlanError
from pipelined.programs.recording import record
from pipelined.schedules import Shape, find, write_table
from pipelined.state.checkpoints.trainer_state import SaveTarget, load, save
from tests.launching import ROOT
from tests.numerics.delayed import OPTIMIZER, delayed, double_buffered, pipedream
from tests.numerics.plain import Case, Feed
from tests.numerics.segments import assert_same, rank, segments
from tests.numerics.trained import on_every_rank
from transports import new_event_loop
from transports.local import world

STEPS = 5


def together(case, story):
    """The outcomes of all ranks, which tell the same story."""

    async def everyone():
        transports = world(case.plan.world_size)
        async with asyncio.TaskGroup() as ranks:
            tasks = [ranks.create_task(rank(case, transport, story)) for transport in transports]
        for transport in transports:
            await transport.close()
        return [task.result() for task in tasks]

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(everyone())


CASES = [
    Case("pipedream", 4, 1, 2, dropout=0.2),
    Case("pipedream", 3, 2, 1, tied=False),
    Case("pipedream", 2, 2, 3, recompute=True, dropout=0.2),
    Case("pipedream", 1, 2, 2),
    Case("pipedream_2bw", 4, 1, 4),
    Case("pipedream_2bw", 2, 2, 3, dropout=0.2, recompute=True),
    Case("pipedream_2bw", 3, 1, 3, tied=False),
    Case("pipedream_2bw", 1, 1, 1),
]


def name(case):
    return f"{case.schedule}-D{case.depth}-W{case.width}-N{case.microbatches}"


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_segment_gives_the_numbers_of_the_delayed_recurrence(case):
    version = double_buffered(case.microbatches) if "2bw" in case.schedule else pipedream(case.depth)
    expected = delayed(case, STEPS, version)
    for outcome in together(case, segments(range(STEPS))):
        assert [report.step for report in outcome.reports] == list(range(STEPS))
        assert_same(expected, outcome)


def test_the_comparison_can_fail():
    """One update of delay more or less must not pass."""
    case = Case("pipedream", 2, 1, 2)
    expected = delayed(case, STEPS, lambda stages, group, microbatch: microbatch)
    with pytest.raises(AssertionError):
        assert_same(expected, together(case, segments(range(STEPS)))[0])


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw"])
def test_a_drain_between_steps_is_as_the_recurrence_has_it(schedule):
    """PipeDream begins anew after it; 2BW keeps the version before the newest, so a drain makes no difference."""
    case = Case(schedule, 3, 1, 3)
    version = pipedream(3, drains=[0, 6, 9]) if schedule == "pipedream" else double_buffered(3)
    expected = delayed(case, STEPS, version)
    for outcome in together(case, segments(range(2), range(2, 3), range(3, STEPS))):
        assert_same(expected, outcome)


def versions_met(case, events):
    """By microbatch the updates a rank had made when its forward began, read off what it computed and when."""
    met, made = {}, 0
    for number in events.times[:, 0].argsort():
        _, op = events.kinds[events.kind[number]]
        step, _, microbatch, _ = events.coordinates[number]
        if op == "forward":
            met[int(step * case.microbatches + microbatch)] = made
        made += op == "backward"
    return met


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("width", [1, 2])
def test_async_1f1b_applies_the_very_delays_that_it_measures(width):
    """But for the tied embedding: its delay depends on the microbatch's number alone."""
    case = Case("async_1f1b", 3, width, 3, dropout=0.1)
    outcomes = together(case, segments(range(STEPS)))
    met = [versions_met(case, outcome.events) for outcome in outcomes]
    for stage in range(3):
        delays = [sum(m - met[group * 3 + stage][m] for group in range(width)) for m in range(3 * STEPS)]
        mean = [sum(delays[3 * step : 3 * step + 3]) / (3 * width) for step in range(STEPS)]
        assert max(mean) <= 2 - stage
        assert all([r.staleness[stage] for r in outcome.reports] == mean for outcome in outcomes)

    def version(stages, group, microbatch):
        return max(0, microbatch - 2) if len(stages) > 1 else met[group * 3 + stages[0]][microbatch]

    expected = delayed(case, STEPS, version)
    for outcome in outcomes:
        assert_same(expected, outcome)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw", "async_1f1b"])
def test_holders_of_a_tied_embedding_stay_equal_to_the_bit(schedule):
    case = Case(schedule, 3, 2, 3)
    first, *others = [o for o in together(case, segments(range(4))) if "transformer.wte.weight" in o.weights]
    assert len(others) == 3
    for other in others:
        assert torch.equal(first.weights["transformer.wte.weight"], other.weights["transformer.wte.weight"])


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw"])
def test_going_on_from_a_checkpoint_is_bit_for_bit(schedule, tmp_path):
    case = Case(schedule, 3, 1, 3, dropout=0.2)

    async def at_once(trainer):
        await trainer.train(range(3), lambda: False)
        await save(trainer, 3, SaveTarget(tmp_path, keep=1))
        return await segments(range(3, STEPS))(trainer)

    async def resumed(trainer):
        assert await load(trainer, tmp_path) == 3
        return await segments(range(3, STEPS))(trainer)

    for one, other in zip(together(case, at_once), together(case, resumed), strict=True):
        assert [r.loss for r in one.reports] == [r.loss for r in other.reports]
        for parameter, fields in one.state.items():
            assert fields.keys() == other.state[parameter].keys()
            assert all(torch.equal(value, other.state[parameter][field]) for field, value in fields.items())


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("schedule", ["pipedream", "async_1f1b", "table"])
def test_all_ranks_end_a_segment_at_the_same_step_if_one_has_to_stop(schedule, tmp_path):
    if schedule == "table":
        schedule = str(tmp_path / "table.csv")
        program = record(find("pipedream"), Shape(3, 2, steps=3))
        Path(schedule).write_text(write_table(program.stage_map, program.keys))
    case = Case(schedule, 3, 2, 2)

    async def story(trainer):
        reports = []

        def asked():
            return trainer.context.actor.rank == 4 and len(reports) > 2

        last = await trainer.train(range(40), asked, reports.append)
        return [*reports, last]

    outcomes = together(case, story)
    assert len({outcome.reports[-1].step for outcome in outcomes}) == 1
    last = outcomes[0].reports[-1]
    assert last.stop and 3 < last.step < 10
    if schedule == "pipedream":
        expected = delayed(case, last.step + 1, pipedream(3))
        for outcome in outcomes:
            assert_same(expected, outcome)


def test_clipping_by_the_global_norm_is_refused():
    async def alone():
        (transport,) = world(1)
        await rank(
            Case("pipedream", 1, 1, 1), transport, segments(range(1)), optimizer_settings=replace(OPTIMIZER, clip=1.0)
        )

    with pytest.raises(PlanError, match=r"before the others' gradients are known \(clip: 1\)"):
        asyncio.run(alone())


def test_several_steps_at_once_are_refused_with_a_flush():
    """A flush drains the pipe after every step, so only the first of them would have been trained."""
    with pytest.raises(PlanError, match=r"drains the pipe after every step \(steps: 2\); train one step at a time"):
        on_every_rank(Case("gpipe", 1, 1, 1), lambda trainer, transport: trainer.train(range(2)))


PAIRS = ROOT / "docs" / "examples" / "pairs.py"


@pytest.mark.parametrize("halves", [False, True])
def test_a_schedule_of_one_s_own_adds_up_as_many_gradients_as_it_says(tmp_path, halves):
    """Two an update, and versions as many as pairs of backwards before; its backward may be split, too."""
    whole, split = "await worker.backward(0)", "await worker.backward_input(0); await worker.backward_weight(0)"
    (tmp_path / "mine.py").write_text(PAIRS.read_text().replace(whole, split if halves else whole))
    case = Case(str(tmp_path / "mine.py"), 3, 1, 4)
    expected = delayed(case, STEPS, lambda stages, group, m: max(0, m - (2 - stages[0])) // 2)
    for outcome in together(case, segments(range(STEPS))):
        assert_same(expected, outcome)


def test_a_table_is_walked_again_from_a_drain_of_each_stage(tmp_path):
    """Two steps of PipeDream, three times over: nothing is older than the beginning of its walk."""
    program = record(find("pipedream"), Shape(3, 2, steps=2))
    (tmp_path / "two.csv").write_text(write_table(program.stage_map, program.keys))
    case = Case(str(tmp_path / "two.csv"), 3, 1, 2, tied=False)
    expected = delayed(case, STEPS, pipedream(3, drains=[0, 4, 8]))
    for outcome in together(case, segments(range(STEPS))):
        assert_same(expected, outcome)


def test_a_step_is_whole_updates():
    with pytest.raises(PlanError, match=r"by 2 microbatches at a time \(microbatches: 3\); use a multiple of 2"):
        Case(str(PAIRS), 3, 1, 3).plan  # noqa: B018


def test_what_fails_under_way_is_named(monkeypatch):
    good = Feed.inputs

    def inputs(feed, step, microbatch):
        if (step, microbatch) == (2, 1):
            raise OSError("the disk is gone")
        return good(feed, step, microbatch)

    monkeypatch.setattr(Feed, "inputs", inputs)
    with pytest.raises(ExceptionGroup) as failed:
        together(Case("pipedream", 3, 1, 2), segments(range(STEPS)))
    story = str(failed.value.exceptions[0])
    assert story.startswith("rank 0, step 2: forward of microbatch 1 through stage 0") and "the disk is gone" in story
