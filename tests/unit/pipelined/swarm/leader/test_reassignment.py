"""Peers go where they are needed, one by one, and stay there; no stage is ever left without."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.swarm.leader.reassignment import rebalance

SIZES = st.lists(st.integers(1, 40), min_size=2, max_size=6)
LOADS = st.none() | st.sampled_from([0.0, 0.1, 0.5, 1.0, 7.0])


def fluid(stages, costs=None):
    """Loads where all stages pass on the same flow and the slowest is always busy."""
    capacities = [len(stage) / cost for stage, cost in _costed(stages, costs)]
    flow = min(capacities)
    return [dict.fromkeys(stage, flow / capacity) for stage, capacity in zip(stages, capacities, strict=True)]


def _costed(stages, costs):
    return zip(stages, costs or [1.0] * len(stages), strict=True)


def swarm(sizes):
    """Stages of so many peers each."""
    return [[f"{stage}-{number:02}" for number in range(size)] for stage, size in enumerate(sizes)]


def settle(stages, costs=None):
    """Rebalance until no peer moves; returns those that did. No move empties a stage, or makes the slowest slower."""
    done = []
    while decided := rebalance(fluid(stages, costs)):
        before = min(len(stage) / cost for stage, cost in _costed(stages, costs))
        for peer, target in decided.items():
            next(stage for stage in stages if peer in stage).remove(peer)
            stages[target].append(peer)
        assert all(stages)
        assert min(len(stage) / cost for stage, cost in _costed(stages, costs)) >= before
        done += decided
        assert len(done) <= 1000, "it never ends"
    return done


def test_the_least_loaded_peer_of_the_least_loaded_stage_goes_to_the_most_loaded():
    assert rebalance([{"a": 0.9, "b": 0.9}, {"c": 0.3, "d": 0.2, "e": 0.3}, {"f": 0.5, "g": 0.6}]) == {"d": 0}


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
    assert len(settle(swarm(sizes))) == moved


def test_long_queues_are_no_more_work_than_all_peers_of_a_stage_can_do():
    """Both stages are busy all the time: a peer taken from the second would make that one the slowest."""
    assert rebalance([{"a": 7.0, "b": 7.0}, {"c": 0.9, "d": 0.9, "e": 0.9, "f": 0.9}]) == {}
    assert rebalance([{"a": 5.0, "b": 5.0}, {"c": 1.0, "d": 1.0}]) == {}


@given(SIZES)
def test_a_balanced_swarm_moves_no_peer(sizes):
    even = [max(sizes)] * len(sizes)
    assert rebalance(fluid(swarm(even))) == {}
    one_less = [max(sizes) - 1 if at % 2 and max(sizes) > 1 else max(sizes) for at in range(len(sizes))]
    assert rebalance(fluid(swarm(one_less))) == {}


@given(SIZES, st.data())
def test_noise_moves_no_peer_in_a_balanced_swarm(sizes, data):
    """Measured loads may be off by 5 percent."""
    loads = fluid(swarm([max(sizes)] * len(sizes)))
    noisy = [{peer: load * data.draw(st.floats(0.95, 1.0)) for peer, load in stage.items()} for stage in loads]
    assert rebalance(noisy) == {}


@given(SIZES)
def test_it_converges_to_even_stages_by_the_fewest_moves(sizes):
    stages = swarm(sizes)
    done = settle(stages)
    assert max(map(len, stages)) - min(map(len, stages)) <= 3, "half a peer, or a twentieth of a stage"
    assert len(done) <= sum(max(0, size - sum(sizes) // len(sizes)) for size in sizes)
    assert len(set(done)) == len(done), "a peer moves twice"


@given(SIZES, st.data())
def test_a_stage_that_costs_more_gets_more_peers(sizes, data):
    stages = swarm([max(3, size) for size in sizes])
    costs = [data.draw(st.sampled_from([1.0, 2.0, 3.0])) for _ in sizes]
    settle(stages, costs)
    poorest = min(len(stage) / cost for stage, cost in _costed(stages, costs))
    for stage, cost in _costed(stages, costs):
        spare = len(stage) - 1 - max(0.5, 0.05 * len(stage))
        assert len(stage) < 2 or spare / cost <= poorest * (1 + 1e-9), "it could have given another"


@given(st.lists(st.dictionaries(st.text("ab", max_size=3), LOADS, max_size=6), min_size=1, max_size=5))
def test_at_most_one_peer_moves_and_its_stage_keeps_one(told):
    stages = [{f"{at}-{name}": load for name, load in stage.items()} for at, stage in enumerate(told)]
    decided = rebalance(stages)
    assert len(decided) <= 1
    for peer, target in decided.items():
        (source,) = (at for at, stage in enumerate(stages) if peer in stage)
        assert stages[source].pop(peer) is not None and source != target
        assert any(load is not None for load in stages[source].values()), "its last that serves"


def test_an_empty_stage_is_served_first_but_no_stage_gives_its_last_peer():
    assert rebalance([{"a": 0.0}, {}, {"b": 0.0, "c": 0.0}]) == {"b": 1}
    assert rebalance([{"a": 0.0}, {}, {"b": 0.0}]) == {}


def test_one_on_its_way_counts_where_it_goes_and_does_not_leave_again():
    full = {"a": 1.0, "b": 1.0}
    idle = {f"i{number}": 2 / 6 for number in range(6)}
    assert rebalance([full, idle]) == {"i0": 0}
    assert rebalance([full | {"i0": None}, {peer: 2 / 5 for peer in idle if peer != "i0"}]) == {"i1": 0}
    four_idle = {peer: 2 / 4 for peer in idle if peer not in ("i0", "i1")}
    assert rebalance([full | {"i0": None, "i1": None}, four_idle]) == {}, "two more are enough"
    assert rebalance([{"a": 1.0}, {"b": 0.1, "c": None}]) == {}, "the only one that serves stays"


@given(SIZES, st.data())
def test_ties_are_broken_alike_whatever_the_order_of_the_news(sizes, data):
    loads = fluid(swarm(sizes))
    shuffled = [dict(data.draw(st.permutations(list(stage.items())))) for stage in loads]
    assert rebalance(shuffled) == rebalance(loads)
