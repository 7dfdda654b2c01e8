"""What the planner looks at."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelined.errors import UsageError
from pipelined.planner.candidates import AUTO, Candidate, candidates, data_parallel
from pipelined.schedules import find, schedule_names
from pipelined.training.graph.compiled import require_compilable


@settings(max_examples=10)
@given(st.integers(1, 8), st.integers(1, 16), st.integers(1, 8))
def test_every_candidate_uses_all_ranks_and_the_whole_batch(ranks, batch, layers):
    try:
        tried = list(candidates(ranks, batch, layers))
    except UsageError as error:
        assert f"ranks: {ranks}, batch: {batch}" in str(error)
        return
    assert {c.plan.world_size for c in tried} == {ranks}
    assert {c.plan.batch for c in tried} == {batch}
    assert max(c.plan.depth for c in tried) <= layers
    assert len(tried) == len(set(tried))


def test_every_schedule_with_a_flush_is_there_and_no_other():
    schedules = {c.plan.schedule for c in candidates(4, 16, 8)}
    assert schedules == {name for name in schedule_names() if all(c.plan.flushes for c in of(name))} - without_flush()


def of(name):
    try:
        return list(candidates(4, 16, 8, {"schedule": name}))
    except UsageError:
        return []


def without_flush():
    return {name for name in schedule_names() if not of(name)}


def test_a_schedule_without_a_flush_is_never_a_candidate():
    assert without_flush() == {"async_1f1b", "pipedream", "pipedream_2bw"}


def test_variants_of_chimera_are_all_there():
    labels = {c.label for c in candidates(8, 32, 8, {"schedule": "chimera"})}
    assert {"chimera", "chimera 4 pipes", "chimera 8 pipes", "chimera forward-doubling"} <= labels


def test_data_parallelism_is_a_candidate_where_the_batch_divides():
    assert Candidate(data_parallel(4, 16)) in set(candidates(4, 16, 8))
    assert data_parallel(3, 16) is None


@pytest.mark.parametrize(
    "fixed", [{"depth": 2}, {"width": 2, "recompute": True}, {"microbatch": 4}, {"schedule": "zb_h1"}, {"pipes": 4}]
)
def test_what_is_fixed_is_not_chosen(fixed):
    matching = list(candidates(4, 16, 8, fixed))
    assert matching
    for name, value in fixed.items():
        getters = {"recompute": lambda c: c.recompute, "pipes": lambda c: c.plan.stage_map.pipes}
        assert {getters.get(name, lambda c, name=name: c.plan.to_dict()[name])(c) for c in matching} == {value}


def test_a_layout_that_is_named_is_that_of_every_plan():
    teams = {(c.plan.tensor, c.plan.layout) for c in candidates(4, 16, 8, {"tensor": AUTO, "layout": "data"})}
    assert teams == {(2, "data"), (4, "data")}
    with pytest.raises(UsageError, match=r"ranks: 1, .*tensor: auto, layout: data"):
        list(candidates(1, 16, 8, {"tensor": AUTO, "layout": "data"}))


def test_plans_of_stages_that_are_compiled_have_whole_backwards_and_workers_of_one_rank():
    plans = {c.plan for c in candidates(4, 8, 4, {"tensor": AUTO, "compile": True}, without_flush=True)}
    assert {"gpipe", "one_f_one_b", "chimera"} <= {plan.schedule for plan in plans}
    for plan in plans:
        require_compilable(plan, exact=False, attention=False)
    with pytest.raises(UsageError, match="compile: True"):
        list(candidates(4, 16, 8, {"schedule": "zb_h1", "compile": True}))


def test_a_schedule_of_the_users_own_can_be_requested():
    matching = list(candidates(2, 8, 4, {"schedule": "docs/examples/gems.py"}))
    assert {c.plan.schedule for c in matching} == {"docs/examples/gems.py"}
    assert find("docs/examples/gems.py")


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"schedule": "nonsense"}, "unknown schedule 'nonsense'"),
        ({"depth": 3}, "depth: 3"),
        ({"schedule": "pipedream"}, "no schedule with a flush"),
    ],
)
def test_impossible_settings_are_refused(fixed, message):
    with pytest.raises(UsageError, match=message):
        list(candidates(4, 16, 8, fixed))
