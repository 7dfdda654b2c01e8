"""Ravnest's pipeline: how many microbatches alive keep all stages busy over slow links, and how late gradients are.

Source of the numbers: an event simulation outside this project, and the closed forms beside them.
"""

import json
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.__main__ import main
from pipelined.programs.costs import Costs
from pipelined.programs.pricing.price import price_schedule
from pipelined.programs.pricing.steady import steady
from pipelined.programs.proof.check import check
from pipelined.programs.staleness import peak_alive, staleness, steps_to_fill
from pipelined.schedules import ScheduleError, Shape, alive_limits, find

ASYNC = find("async_1f1b")


def law(costs, depth):
    """The microbatches alive that the law of round trips gives each stage, without bounds of memory."""
    works = [f + b for f, b in zip(costs.forward, costs.backward, strict=True)]
    return [ceil((sum(works[s:]) + 2 * (depth - 1 - s) * costs.p2p) / max(works)) for s in range(depth)]


def rate(costs, limits, microbatches):
    """The pipeline's rate over that of its slowest stage."""
    shape = Shape(len(limits), microbatches, {"ahead": ",".join(map(str, limits))})
    slowest = max(f + b for f, b in zip(costs.forward, costs.backward, strict=True))
    return microbatches * slowest / steady(ASYNC, shape, costs).step


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("microbatches", [1, 5, 12])
def test_equal_stages_take_3m_and_3_for_each_further_stage(depth, microbatches):
    timeline = price_schedule(ASYNC, Shape(depth, microbatches), Costs(1, 2))
    assert timeline.makespan == 3 * microbatches + 3 * (depth - 1)
    if microbatches >= depth:
        assert staleness(timeline.program) == [depth - 1 - stage for stage in range(depth)]


@pytest.mark.parametrize("first", range(1, 10))
def test_over_slow_links_each_microbatch_alive_is_a_seventh_of_the_full_rate(first):
    """Three stages of 10 and 20 ms, 30 ms a way: a round trip is seven times a stage's work."""
    costs = Costs([0.01] * 3, [0.02] * 3, p2p=0.03)
    assert law(costs, 3) == [7, 4, 1]
    limits = [ceil(first * k / 7) for k in law(costs, 3)]
    assert rate(costs, limits, 2 * first) == pytest.approx(min(first / 7, 1))


def test_d_minus_s_microbatches_alive_starve_the_pipe_over_slow_links():
    costs = Costs([0.01] * 3, [0.02] * 3, p2p=0.03)
    assert rate(costs, [3, 2, 1], 3) == pytest.approx(3 / 7)


@pytest.mark.parametrize("forward", [(1, 2, 3, 2), (2, 1, 4, 1)])
@pytest.mark.parametrize("delay", [0, 1, 3])
def test_within_two_and_a_half_times_the_law_the_pipe_runs_at_95_percent(forward, delay):
    costs = Costs([float(f) for f in forward], [2.0 * f for f in forward], p2p=float(delay))
    by_law = law(costs, 4)
    tried = range(by_law[0], ceil(2.5 * by_law[0]) + 1)
    limits = ([ceil(first * k / by_law[0]) for k in by_law] for first in tried)
    assert any(rate(costs, each, 24) >= 0.95 for each in limits)


@given(
    st.integers(1, 5).flatmap(
        lambda depth: st.tuples(
            st.lists(st.integers(1, 6), min_size=depth, max_size=depth),
            st.lists(st.floats(0.1, 5.0), min_size=2 * depth, max_size=2 * depth),
        )
    ),
    st.floats(0.0, 20.0),
)
def test_no_stage_has_more_alive_than_its_limit_or_is_as_many_late(stages, delay):
    limits, seconds = stages
    depth = len(limits)
    costs = Costs(seconds[:depth], seconds[depth:], p2p=delay)
    shape = Shape(depth, 4, {"ahead": ",".join(map(str, limits))}, steps=4)
    program = price_schedule(ASYNC, shape, costs).program
    check(program)
    for stage, late in enumerate(staleness(program)):
        assert late <= limits[stage] - 1
        assert peak_alive(program.workers[stage]) <= limits[stage]


def test_one_number_is_that_of_the_first_stage_and_in_proportion_on_later_ones():
    assert alive_limits(Shape(3, 4)) == ()
    assert alive_limits(Shape(3, 4, {"ahead": "7"})) == (7, 5, 3)
    assert alive_limits(Shape(3, 4, {"ahead": "3"})) == (3, 2, 1)
    assert steps_to_fill(Shape(3, 4, {"ahead": "9"})) == 5


@pytest.mark.parametrize("ahead", ["0", "7,4", "7,4,0", "x", "-1", "1.5", "7,4,1,1", ",", "4097"])
def test_a_wrong_limit_is_refused(ahead):
    with pytest.raises(ScheduleError, match="no number of microbatches alive"):
        ASYNC.stage_map(Shape(3, 4, {"ahead": ahead}))


def test_a_schedule_with_an_order_of_its_own_takes_no_limit():
    for name in ("gpipe", "pipedream", "chimera"):
        with pytest.raises(ScheduleError, match=r"only async_1f1b takes a limit .*\(ahead: 7\)"):
            find(name).stage_map(Shape(4, 4, {"ahead": "7"}))


FIGURES = {
    "1a": (
        "async_1f1b --microbatches 2 --ahead 1",
        """\
worker 0 (0)  |F0|                 |B0   |F1|                 |B1   |
worker 1 (1)     |F0|        |B0   |        |F1|        |B1   |
worker 2 (2)        |F0|B0   |                 |F1|B1   |
""",
        "66.7%",
    ),
    "1b": (
        "gpipe --microbatches 3",
        """\
worker 0 (0)  |F0|F1|F2|                 |B0   |B1   |B2   |
worker 1 (1)     |F0|F1|F2|        |B0   |B1   |B2   |
worker 2 (2)        |F0|F1|F2|B0   |B1   |B2   |
""",
        "40.0%",
    ),
    "3": (
        "async_1f1b --microbatches 6",
        """\
worker 0 (0)  |F0|F1|F2|           |B0   |F3|B1   |F4|B2   |F5|B3   |  |B4   |  |B5   |
worker 1 (1)     |F0|F1|     |B0   |F2|B1   |F3|B2   |F4|B3   |F5|B4   |  |B5   |
worker 2 (2)        |F0|B0   |F1|B1   |F2|B2   |F3|B3   |F4|B4   |F5|B5   |
""",
        "25.0%",
    ),
}
"""Of the paper, for three stages: one microbatch at a time, a pipeline with a flush, and without one; and the bubble.

In Figure 3 each stage but the last is full from its first backward on, and idle again only where microbatches end.
"""


@pytest.mark.parametrize("figure", FIGURES)
def test_the_command_draws_the_figures_of_the_paper(figure, capsys):
    words, grid, bubble = FIGURES[figure]
    assert main(["schedule", *words.split(), "--depth", "3"]) == 0
    drawn = capsys.readouterr().out
    assert drawn.startswith(grid) and f"bubble ratio      {bubble}" in drawn


def test_in_the_paper_s_figure_3_gradients_are_older_towards_the_first_stage(capsys):
    assert main(["schedule", "async_1f1b", "--depth", "3", "--microbatches", "6"]) == 0
    assert "staleness         2 1 0 (updates a stage)" in capsys.readouterr().out
    assert main(["schedule", "async_1f1b", "--depth", "3", "--microbatches", "6", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["staleness"] == [2, 1, 0] and told["steady_step"] == 18  # six of three seconds: no bubble is left
