"""The contest with torch's pipeline: the same work on both sides, fair cuts, and honest figures."""

import math

import pytest
import torch

from benchmarks._contender import Result, Task, Trial
from benchmarks._contender_torch import Alone
from benchmarks._contest import Contest, CutGPT2, TokenRows, stages
from benchmarks.torch_pipelining import Options, agreed, chosen, row, told
from pipelined.errors import UsageError
from pipelined.partition import partition

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
    alone = Alone(SMALL)
    first = alone.step(0)
    assert math.isclose(first, math.log(SMALL.vocab), rel_tol=0.2)
    assert [alone.step(0) for _ in range(9)][-1] < first


def test_a_task_goes_over_the_command_line_whole():
    task = Task(SMALL, (Trial("gpipe", (3, 6)), Trial("one_f_one_b", (2, 6))), "/tmp/somewhere")
    assert Task.loads(task.dumps()) == task


def result(schedule: str, ends: tuple[int, ...], tokens_per_s: float = 1.0, cpu_s: float = 1.0, loss: float = 2.0):
    return Result(schedule, ends, tokens_per_s, cpu_s, loss)


def test_each_schedule_keeps_its_fastest_cut():
    results = [result("a", (1, 2), 5.0), result("a", (2, 3), 9.0), result("b", (1, 2), 1.0)]
    assert chosen(results) == [Trial("a", (2, 3)), Trial("b", (1, 2))]


def test_unequal_losses_make_times_worthless():
    agreed([result("a", (1,), loss=2.0), result("b", (1,), loss=2.00001)])
    with pytest.raises(RuntimeError, match="losses differ"):
        agreed([result("a", (1,), loss=2.0), result("b", (1,), loss=2.01)])


def results(*rates: float, ends: tuple[int, ...] = (1, 2)) -> list[Result]:
    return [result("gpipe", ends, rate, cpu_s=rate / 10) for rate in rates]


def test_figures_are_medians_of_what_was_seen_within_each_round():
    seen = row(results(10.0, 30.0, 22.0), results(10.0, 20.0, 20.0), results(20.0, 50.0, 40.0))
    assert seen.ratios == [1.0, 1.5, 1.1] and seen.kept
    assert seen.fraction == 0.55 and seen.their_fraction == 0.5
    assert seen.our_cpu == (1.0, 3.0, 2.2) and seen.alone_cpu == (2.0, 5.0, 4.0)


def test_a_promise_is_that_of_the_number_of_ranks():
    four, three = (row(results(9.0, ends=e), results(10.0, ends=e), results(20.0)) for e in ((1, 2, 3, 4), (1, 2, 3)))
    assert four.kept is False and three.kept is None
    assert "short of 1.0" in told(Options(), [four]) and "short" not in told(Options(), [three])


def test_no_rounds_are_refused():
    with pytest.raises(UsageError, match="--rounds must be at least 1"):
        Options(rounds=0)
