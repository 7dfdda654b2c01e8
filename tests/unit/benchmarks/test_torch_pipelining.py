"""The contest with torch's pipeline: the same work on both sides, fair cuts, and duels of equals."""

import math

import pytest
import torch

from apps.common.lm.models.gpt2_presets import layer_costs
from benchmarks.pipelines.contender import Result, Task, Trial
from benchmarks.pipelines.contest import STAGES_A_RANK, Contest, CutGPT2, TokenRows, stages
from benchmarks.pipelines.contest_table import Entry, duels, limit
from benchmarks.torch_pipelining import agreed, chosen
from pipelined.programs.partition import partition

SMALL = Contest(layers=4, d_model=8, heads=2, vocab=11, sequence=5, batch=2, microbatches=3)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 6])
def test_a_model_is_cut_where_one_says(depth):
    cuts = SMALL.cuts(depth, 10)
    assert cuts
    for ends in cuts:
        assert partition(CutGPT2(SMALL.config, ends).costs(5), depth) == stages(ends)


def test_the_first_cut_tried_is_the_one_with_the_cheapest_largest_stage():
    costs = CutGPT2.__bases__[0](Contest().config).costs(Contest().sequence)
    largest = [max(sum(costs[i] for i in stage) for stage in stages(ends)) for ends in Contest().cuts(4, 50)]
    assert largest == sorted(largest)
    assert largest[0] == max(sum(costs[i] for i in stage) for stage in partition(costs, 4))


def test_a_step_has_the_same_rows_whole_and_by_microbatch():
    feed, rows = TokenRows(SMALL), SMALL.rows(7)
    assert torch.equal(torch.cat([feed.inputs(7, m) for m in range(3)]), rows[:, :-1])
    assert torch.equal(torch.cat([feed.targets(7, m) for m in range(3)]), rows[:, 1:])
    assert not torch.equal(rows, SMALL.rows(8))


def test_a_whole_model_learns_by_its_own_first_batch():
    from benchmarks.pipelines.contender_torch import Alone  # not at collection: it imports torch's compiler

    alone = Alone(SMALL)
    first = alone.step(0)
    assert math.isclose(first, math.log(SMALL.vocab), rel_tol=0.2)
    assert [alone.step(0) for _ in range(9)][-1] < first


def test_a_task_goes_over_the_command_line_whole():
    task = Task(SMALL, (Trial("gpipe", (3, 6)), Trial("one_f_one_b", (2, 6))), "/tmp/somewhere")
    assert Task.loads(task.dumps()) == task


def result(schedule: str, ends: tuple[int, ...], tokens_per_s=1.0, cpu_s=1.0, losses=(3.0, 2.0), norm=1.0):
    return Result(schedule, ends, tokens_per_s, cpu_s, losses, norm)


def test_each_schedule_keeps_its_fastest_cut():
    results = [result("a", (1, 2), 5.0), result("a", (2, 3), 9.0), result("b", (1, 2), 1.0)]
    assert set(chosen(results)) == {Trial("a", (2, 3)), Trial("b", (1, 2))}


def test_one_lucky_launch_does_not_choose_a_cut():
    results = [result("a", (1, 2), 9.0), result("a", (2, 3), 7.0), result("a", (1, 2), 4.0), result("a", (2, 3), 8.0)]
    assert chosen(results) == [Trial("a", (2, 3))]


@pytest.mark.parametrize(
    "other, fact",
    [
        ({"losses": (3.0001, 2.0)}, "losses of step 1 differ"),
        ({"losses": (3.0, 2.0001)}, "losses of step 2 differ"),
        ({"losses": (3.0, math.nan)}, "losses of step 2 differ"),
        ({"norm": 1.0001}, "gradient norms differ"),
    ],
)
def test_other_losses_in_any_step_or_another_norm_make_times_worthless(other, fact):
    close = result("b", (1,), losses=(3.00001, 2.00001), norm=1.000001)
    agreed([result("a", (1,)), close])
    with pytest.raises(RuntimeError, match=fact):
        agreed([result("a", (1,)), close, result("c", (1,), **other)])


def entry(contender: str, schedule: str, *rates: float, ranks: int = 2, ceiling: float = 40.0) -> Entry:
    several = (ceiling,) * len(rates)
    return Entry(contender, schedule, ranks, (1, 2), rates, several, tuple(rate / 10 for rate in rates), 0.8)


def test_each_schedule_meets_its_twin_the_others_meet_1f1b_and_the_best_meet_each_other():
    entries = [
        entry("ours", "one_f_one_b", 9.0),
        entry("ours", "chimera", 11.0),
        entry("torch", "one_f_one_b", 10.0),
        entry("torch", "zb_v", 8.0),
        entry("ours", "one_f_one_b", 5.0, ranks=4),
        entry("torch", "one_f_one_b", 10.0, ranks=4),
    ]
    found = [(d.ours.ranks, d.ours.schedule, d.theirs.schedule, d.best, d.kept) for d in duels(entries)]
    assert found == [
        (2, "one_f_one_b", "one_f_one_b", False, None),
        (2, "chimera", "one_f_one_b", False, None),
        (2, "chimera", "one_f_one_b", True, True),
        (4, "one_f_one_b", "one_f_one_b", False, None),
        (4, "one_f_one_b", "one_f_one_b", True, False),
    ]


def test_the_limit_counts_bubbles_the_cut_and_the_cores():
    even = Contest(layers=4, d_model=8, heads=2, vocab=1, sequence=5, batch=2, microbatches=8)
    ends = (3, 6)
    shares = stage_shares(even, ends)
    bubble = 8 / 9
    assert limit(even, "gpipe", ends, 2) == pytest.approx(bubble * 0.5 / max(shares), rel=0.01)
    assert limit(even, "chimera", ends, 2) > 0.97
    assert limit(even, "gpipe", ends, 1) == pytest.approx(1.0)


def stage_shares(contest, ends):
    costs = layer_costs(contest.config, contest.sequence)
    return [sum(costs[layer] for layer in stage) / sum(costs) for stage in stages(ends)]


@pytest.mark.parametrize("schedule", STAGES_A_RANK)
def test_every_schedule_of_the_contest_runs_on_two_ranks(schedule):
    ends = Contest().cuts(2 * STAGES_A_RANK[schedule], 1)[0]
    assert Contest().plan(schedule, ends).world_size == 2
