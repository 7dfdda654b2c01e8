"""Peers go where they are needed, one by one, and stay there; no stage is ever left without."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.swarm.rebalance import Move, moves, pause, place

SIZES = st.lists(st.integers(1, 40), min_size=2, max_size=6)
LOADS = st.none() | st.sampled_from([0.0, 0.1, 0.5, 1.0, 7.0])
STAGES_TOLD = st.dictionaries(st.text("ab", max_size=3), LOADS, max_size=6)


def fluid(stages, speeds, costs=None):
    """Loads where all stages pass on the same flow and the slowest is always busy; idle where a stage is empty."""
    costs = costs or [1.0] * len(stages)
    capacities = [sum(speeds[peer] for peer in stage) / cost for stage, cost in zip(stages, costs, strict=True)]
    flow = min(capacities)
    return [
        dict.fromkeys(stage, flow / capacity if flow else 0.0)
        for stage, capacity in zip(stages, capacities, strict=True)
    ]


def swarm(sizes):
    """Stages of so many peers each, all alike."""
    stages = [[f"{stage}-{number:02}" for number in range(size)] for stage, size in enumerate(sizes)]
    return stages, {peer: 1.0 for stage in stages for peer in stage}


def settle(stages, speeds, costs=None, most=1):
    """Rebalance until nobody moves; gives all moves. After each no stage is empty and the slowest no slower."""
    done = []
    while decided := moves(fluid(stages, speeds, costs), speeds, most=most):
        before = min(sum(speeds[peer] for peer in stage) / cost for stage, cost in _costed(stages, costs))
        for move in decided:
            stages[move.source].remove(move.peer)
            stages[move.target].append(move.peer)
        assert all(stages)
        assert min(sum(speeds[peer] for peer in stage) / cost for stage, cost in _costed(stages, costs)) >= before
        done += decided
        assert len(done) <= 1000, "it never ends"
    return done


def _costed(stages, costs):
    return zip(stages, costs or [1.0] * len(stages), strict=True)


def test_the_least_loaded_peer_of_the_least_loaded_stage_goes_to_the_most_loaded():
    loads = [{"a": 0.9, "b": 0.9}, {"c": 0.3, "d": 0.2, "e": 0.3}, {"f": 0.5, "g": 0.6}]
    assert moves(loads) == [Move("d", 1, 0)]


@pytest.mark.parametrize(
    "sizes, moved",
    [
        ([3, 3], 0),
        ([3, 2], 0),
        ([4, 2], 1),
        ([1, 1, 1], 0),
        ([3, 1, 1], 1),
        ([7, 1, 1], 4),
        ([100, 102], 0),
        ([100, 106], 0),
        ([100, 107], 1),
        ([10, 5, 3, 2], 5),
    ],
)
def test_known_answers(sizes, moved):
    assert len(settle(*swarm(sizes))) == moved


def test_long_queues_are_no_more_work_than_all_peers_of_a_stage_can_do():
    """Both stages are busy all the time: a peer taken from the second would make that one the slowest."""
    assert moves([{"a": 7.0, "b": 7.0}, {"c": 0.9, "d": 0.9, "e": 0.9, "f": 0.9}]) == []
    assert moves([{"a": 5.0, "b": 5.0}, {"c": 1.0, "d": 1.0}]) == []


@given(SIZES)
def test_a_balanced_swarm_moves_nobody(sizes):
    even = [max(sizes)] * len(sizes)
    assert moves(fluid(*swarm(even))) == []
    one_less = [max(sizes) - 1 if at % 2 and max(sizes) > 1 else max(sizes) for at in range(len(sizes))]
    assert moves(fluid(*swarm(one_less))) == []


@given(SIZES, st.data())
def test_noise_moves_nobody_in_a_balanced_swarm(sizes, data):
    """Measured loads may be off by 5 percent."""
    stages, speeds = swarm([max(sizes)] * len(sizes))
    loads = fluid(stages, speeds)
    noisy = [{peer: load * data.draw(st.floats(0.95, 1.0)) for peer, load in stage.items()} for stage in loads]
    assert moves(noisy) == []


@given(SIZES)
def test_it_converges_to_even_stages_by_the_fewest_moves(sizes):
    stages, speeds = swarm(sizes)
    done = settle(stages, speeds)
    assert max(map(len, stages)) - min(map(len, stages)) <= 3, "half a peer, or a twentieth of a stage"
    assert len(done) <= sum(max(0, size - sum(sizes) // len(sizes)) for size in sizes)
    assert len({move.peer for move in done}) == len(done), "nobody moves twice"


@given(SIZES, st.integers(2, 5))
def test_several_at_once_end_where_one_at_a_time_does(sizes, most):
    one, several = swarm(sizes), swarm(sizes)
    settle(*one), settle(*several, most=most)
    assert sorted(map(len, one[0])) == sorted(map(len, several[0]))


@given(SIZES, st.data())
def test_a_stage_that_costs_more_gets_more_peers(sizes, data):
    stages, speeds = swarm([max(3, size) for size in sizes])
    costs = [data.draw(st.sampled_from([1.0, 2.0, 3.0])) for _ in sizes]
    settle(stages, speeds, costs)
    loads = [len(stage) / cost for stage, cost in _costed(stages, costs)]
    poorest = min(range(len(stages)), key=loads.__getitem__)
    for stage, cost in _costed(stages, costs):
        left = len(stage) - 1 - max(0.5, 0.05 * len(stage))
        assert len(stage) < 2 or left / cost <= loads[poorest] * (1 + 1e-9), "it could have given another"


@given(SIZES, st.data())
def test_unequal_peers_settle_and_never_come_back(sizes, data):
    stages, speeds = swarm([min(size, 8) for size in sizes])
    speeds = {peer: data.draw(st.sampled_from([1.0, 2.0, 4.0])) for peer in speeds}
    settle(stages, speeds)


@given(
    st.lists(st.dictionaries(st.text("ab", max_size=3), LOADS, max_size=6), min_size=1, max_size=5), st.integers(0, 4)
)
def test_whatever_is_told_moves_are_few_and_leave_each_stage_one_that_serves(told, most):
    stages = [{f"{at}-{name}": load for name, load in stage.items()} for at, stage in enumerate(told)]
    decided = moves(stages, most=most)
    assert len(decided) <= most and len({move.peer for move in decided}) == len(decided)
    for move in decided:
        assert stages[move.source].pop(move.peer) is not None and move.source != move.target
        assert any(load is not None for load in stages[move.source].values()), "its last that serves"


def test_a_peer_that_its_stage_cannot_do_without_stays_though_it_is_the_least_loaded():
    stages, speeds = [["fast", "slow-1", "slow-2"], ["slow-3", "slow-4"]], {"fast": 4.0}
    speeds |= {f"slow-{number}": 1.0 for number in range(1, 5)}
    assert [move.peer for move in settle(stages, speeds)] == ["slow-1", "slow-2"]
    assert stages == [["fast"], ["slow-3", "slow-4", "slow-1", "slow-2"]]


def test_an_empty_stage_is_served_first_but_nobody_gives_its_last_peer():
    assert moves([{"a": 0.0}, {}, {"b": 0.0, "c": 0.0}]) == [Move("b", 2, 1)]
    assert moves([{"a": 0.0}, {}, {"b": 0.0}]) == []


def test_one_on_its_way_counts_where_it_goes_and_does_not_leave_again():
    full = {"a": 1.0, "b": 1.0}
    idle = {f"i{number}": 2 / 6 for number in range(6)}
    assert moves([full, idle]) == [Move("i0", 1, 0)]
    assert moves([full | {"i0": None}, {peer: 2 / 5 for peer in idle if peer != "i0"}]) == [Move("i1", 1, 0)]
    rest = {peer: 2 / 4 for peer in idle if peer not in ("i0", "i1")}
    assert moves([full | {"i0": None, "i1": None}, rest]) == [], "two more are enough"
    assert moves([{"a": 1.0}, {"b": 0.1, "c": None}]) == [], "the only one that serves stays"


def test_who_rests_is_not_moved():
    loads = [{"a": 1.0}, {"b": 0.1, "c": 0.2, "d": 0.2}]
    assert moves(loads) == [Move("b", 1, 0)]
    assert moves(loads, resting={"b"}) == [Move("c", 1, 0)]
    assert moves(loads, resting={"b", "c", "d"}) == []


@given(SIZES, st.data())
def test_ties_are_broken_alike_whatever_the_order_of_the_news(sizes, data):
    loads = fluid(*swarm(sizes))
    shuffled = [dict(data.draw(st.permutations(list(stage.items())))) for stage in loads]
    assert moves(shuffled, most=3) == moves(loads, most=3)


def test_a_newcomer_goes_to_the_most_loaded_stage():
    assert place([{"a": 0.4}, {"b": 1.0, "c": 1.0}, {"d": 0.9}]) == 1
    assert place([{"a": 1.0}, {"b": 4.0}]) == 1, "the longer queue"
    assert place([{"a": 1.0}, {}, {"b": 4.0}]) == 1, "nobody is there"
    assert place([{}, {}]) == 0


def test_newcomers_before_anything_is_measured_spread_evenly():
    stages = [{}, {}, {}]
    for number in range(8):
        stages[place(stages)][f"new-{number}"] = None
    assert [len(stage) for stage in stages] == [3, 3, 2]


@given(st.lists(st.integers(1, 40), min_size=2, max_size=6), st.integers(1, 60))
def test_many_newcomers_at_once_leave_no_stage_behind(sizes, count):
    stages, speeds = swarm(sizes)
    loads = fluid(stages, speeds)
    for number in range(count):
        loads[place(loads)][f"new-{number}"] = None
    grown = [len(stage) for stage in loads]
    assert max(after for after, before in zip(grown, sizes, strict=True) if after > before) <= min(grown) + 1


def test_pauses_differ_by_seed_and_are_a_tenth_off_at_most():
    drawn = {pause(300.0, (7, turn)) for turn in range(50)}
    assert len(drawn) == 50 and 270 <= min(drawn) < 285 and 315 < max(drawn) <= 330
    assert pause(60.0, "x") == pause(60.0, "x") and pause(60.0, "x", jitter=0.0) == 60.0
