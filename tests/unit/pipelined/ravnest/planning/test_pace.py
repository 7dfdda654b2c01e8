"""Microbatches alive: the least that reach 95 % of the slowest node's rate, as far as their bytes fit.

Source of the numbers: an event simulation outside this project, and the closed forms beside them.
"""

import pytest

from pipelined.ravnest.planning import pace
from pipelined.ravnest.planning.pace import pace_of
from pipelined.ravnest.planning.plan import PoolRequest, make_plan
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.stage_sizes import LayerSize, StageRules, StageSizes

LEAST = {
    (1, 1, 1, 1): [(4, 4), (7, 7), (10, 10)],
    (1, 2, 3, 2): [(4, 4), (4, 7), (7, 7)],
    (4, 3, 2, 1): [(3, 5), (3, 3), (7, 9)],
    (2, 1, 4, 1): [(3, 3), (3, 3), (5, 5)],
}
"""By the seconds of the stages' forwards, and lines of 0, 1 and 3 s: the least K_0; a range depends on ties."""


def paced(works, line=0.0, ram=10**6, delay=0.0, **rules):
    """The pace of a layer a node, with a forward and a backward of these seconds, and lines of so many."""
    nodes = [PoolNode(str(i), ram, 1.0, 1.0, delay=delay) for i in range(len(works))]
    layers = [LayerSize(parameters=1, activation_bytes=4, input_bytes=int(line), work=float(work)) for work in works]
    return pace_of(nodes, [range(i, i + 1) for i in range(len(works))], StageSizes(layers, StageRules(**rules)))


@pytest.mark.parametrize(
    ("forward", "line", "least"),
    [(forward, line, least) for forward, row in LEAST.items() for line, least in zip((0, 1, 3), row, strict=True)],
)
def test_the_least_that_reach_95_percent_are_alive(forward, line, least):
    cluster_pace = paced([3 * each for each in forward], line)
    low, high = least
    assert low <= cluster_pace.alive[0] <= high
    assert cluster_pace.share >= 0.95 and not cluster_pace.shortfall
    assert cluster_pace.seconds == pytest.approx(3 * max(forward) / cluster_pace.share)


def test_a_backward_takes_twice_a_forward_and_with_the_newest_weights_one_more(monkeypatch):
    priced = []
    monkeypatch.setattr(pace, "price_steady_step", lambda schedule, shape, costs: priced.append(costs) or 12 * 12.0)
    paced([9.0])
    paced([9.0], weights="newest")
    kept, newest = ((*costs.forward, *costs.backward) for costs in (priced[0], priced[-1]))
    assert kept == pytest.approx((3, 6)) and newest == pytest.approx((3, 9))


@pytest.mark.parametrize(("ram", "alive"), [(1000, [7, 4, 1]), (52, [5, 3, 1]), (36, [3, 2, 1])])
def test_as_many_are_alive_as_fit_and_where_these_are_too_few_it_is_said(ram, alive):
    """Three nodes with 30 seconds each and lines of 30: a seventh of the full rate for each. Bytes: 4 (K + 3) + 4 K."""
    cluster_pace = paced([30.0] * 3, 30.0, ram)
    assert cluster_pace.alive == alive
    assert cluster_pace.share == pytest.approx(alive[0] / 7) and cluster_pace.seconds == pytest.approx(210 / alive[0])
    assert cluster_pace.shortfall == ("more microbatches alive do not fit" if alive[0] < 7 else "")


def test_the_most_that_fit_are_alive_where_the_law_s_fit_and_those_that_reach_95_percent_do_not():
    """Forwards of 1, 2, 3, 2 over free lines: the law's 3 reach 86 %, and 4 all; 36 bytes hold 3."""
    cluster_pace = paced([3, 6, 9, 6], ram=36)
    assert cluster_pace.alive[0] == 3
    assert (
        cluster_pace.share == pytest.approx(6 / 7, abs=0.01)
        and cluster_pace.shortfall == "more microbatches alive do not fit"
    )


def test_where_no_number_reaches_95_percent_the_most_are_taken(monkeypatch):
    monkeypatch.setattr(pace, "MAX_MULTIPLE", 1.5)
    cluster_pace = paced([12, 9, 6, 3], 3)
    assert cluster_pace.alive[0] == 6  # 1.5 times the law's
    assert (
        cluster_pace.share < 0.95 and cluster_pace.shortfall == "no number alive up to 1.5 times the law's reaches 95%"
    )


def test_a_line_slower_than_every_node_sets_the_pace():
    cluster_pace = paced([3.0, 3.0], 12)
    assert cluster_pace.seconds == pytest.approx(12) and cluster_pace.share == 1.0
    assert cluster_pace.alive == [3, 1]  # a round trip of 30 s, a microbatch every 12


def test_a_given_number_is_priced_and_kept():
    cluster_pace = paced([30.0] * 3, 30.0, ahead=1)
    assert (cluster_pace.alive, cluster_pace.shortfall) == ([1, 1, 1], "--ahead is 1")
    assert cluster_pace.seconds == pytest.approx(210)
    assert paced([30.0] * 3, 30.0, ahead=4096).shortfall == ""


def test_without_speeds_nothing_is_priced():
    nodes = tuple(PoolNode(name, 1000, 1.0) for name in "ab")
    (cluster,) = make_plan(PoolRequest(nodes, (LayerSize(1, 4, 4, 3.0),) * 2, clusters=1)).clusters
    assert [stage.alive for stage in cluster.stages] == [2, 1]
    assert cluster.to_dict()["share"] is None and cluster.pace_text == ""


def test_the_plan_says_what_a_cluster_falls_short_of():
    nodes = tuple(PoolNode(str(i), 36, 1.0, 1.0) for i in range(3))
    layers = (LayerSize(parameters=1, activation_bytes=4, input_bytes=30, work=30.0),) * 3
    (cluster,) = make_plan(PoolRequest(nodes, layers, clusters=1)).clusters
    assert cluster.to_dict()["share"] == pytest.approx(3 / 7)
    rate_text = "43% of the rate of its slowest node or line (more microbatches alive do not fit)"
    assert cluster.pace_text == f"a microbatch every 70 s, {rate_text}"


def test_an_open_number_is_no_more_than_the_schedule_takes(monkeypatch):
    monkeypatch.setattr(pace, "MAX_AHEAD", 3)
    assert paced([30.0] * 3, 30.0).alive == [3, 2, 1]


def test_a_codec_shortens_the_lines_and_fewer_are_alive():
    assert (paced([30.0] * 3, 30.0).alive, paced([30.0] * 3, 30.0, coded=0.5).alive) == ([7, 4, 1], [5, 3, 1])


def test_a_delay_is_in_each_round_trip_and_occupies_no_line():
    """Lines of 60 s a way, of which the bytes occupy 10: 11 alive by the law, and the stages set the pace."""
    cluster_pace = paced([30.0] * 3, 10, delay=50.0)
    assert cluster_pace.alive[0] == 11 and cluster_pace.share >= 0.95
