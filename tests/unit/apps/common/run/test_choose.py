"""What is chosen where the user left something open."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.common.run.choose import RequestedShape, choose
from pipelined.errors import UsageError
from pipelined.schedules import schedule_names


@pytest.mark.parametrize(
    ("ranks", "schedule", "depth", "width", "batch"),
    [
        (1, "one_f_one_b", 1, 1, 32),
        (2, "chimera", 2, 1, 32),
        (3, "one_f_one_b", 3, 1, 32),
        (4, "chimera", 4, 1, 32),
        (5, "one_f_one_b", 5, 1, 32),
        (6, "chimera", 6, 1, 32),
        (7, "one_f_one_b", 1, 7, 28),
        (8, "chimera", 4, 2, 32),
        (16, "chimera", 4, 4, 32),
        (64, "chimera", 4, 16, 32),
    ],
)
def test_every_world_size_gets_a_plan_and_a_reason(ranks, schedule, depth, width, batch):
    plan, reason = choose(RequestedShape(world_size=ranks, layers=6, batch=32))
    assert (plan.schedule, plan.depth, plan.width, plan.batch) == (schedule, depth, width, batch)
    assert reason


@given(st.integers(1, 128), st.integers(1, 40), st.integers(1, 64))
def test_a_chosen_plan_uses_every_rank(ranks, layers, batch):
    plan, _ = choose(RequestedShape(world_size=ranks, layers=layers, batch=batch))
    assert plan.world_size == ranks
    assert plan.depth <= layers


def test_ranks_that_are_no_multiple_of_the_depth_are_refused_with_the_nearest_numbers():
    with pytest.raises(UsageError, match=r"ranks: 6, depth: 4\); start 4 or 8 ranks"):
        choose(RequestedShape(world_size=6, layers=6, batch=32, depth=4))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"microbatch": 3}, r"\(--batch 7, microbatch 3 x width 2 = 6\); choose a multiple of 6,"),
        ({"microbatches": 2}, r"\(--batch 7, microbatches 2 x width 2 = 4\); choose a multiple of 4,"),
        ({"microbatch": 3, "microbatches": 2}, r"microbatch 3 x microbatches 2 x width 2 = 12\); give 12,"),
        ({}, r"\(--batch 7, width 2\); choose a multiple of 2,"),
    ],
)
def test_a_batch_that_does_not_divide_is_refused_with_the_product_of_what_was_given(given, message):
    """It named the microbatch that was chosen, too, of which --batch need be no multiple."""
    with pytest.raises(UsageError, match=message):
        choose(RequestedShape(world_size=8, layers=6, batch=7, batch_given=True, depth=4, **given))


@pytest.mark.parametrize(
    ("besides", "message"),
    [
        ("", r"\(stages: 8, layers: 6\); lower --depth to 6 or less$"),
        (
            "embedding and head",
            r"6, counting embedding and head\); lower --depth to 6 or less, or raise --layers$",
        ),
    ],
)
def test_more_stages_than_layers_are_refused_with_the_flags_that_the_program_has(besides, message):
    with pytest.raises(UsageError, match=message):
        choose(RequestedShape(world_size=8, layers=6, batch=32, depth=8, besides=besides))


@pytest.mark.parametrize(
    ("ranks", "schedule", "chunks", "depth", "width"),
    [
        (4, "zb_h1", 1, 4, 1),
        (4, "chimera_w", 1, 4, 1),
        (4, "zb_v", 1, 8, 1),
        (8, "zb_v", 1, 8, 2),
        (1, "dualpipe_v", 1, 2, 1),
        (4, "dualpipe_v", 2, 8, 1),
        (2, "interleaved", 3, 6, 1),
        (7, "one_f_one_b", 1, 7, 1),
    ],
)
def test_depth_is_the_deepest_that_fits_the_requested_schedule(ranks, schedule, chunks, depth, width):
    plan, _ = choose(RequestedShape(world_size=ranks, layers=8, batch=32, schedule=schedule, knobs={"chunks": chunks}))
    assert (plan.depth, plan.width, plan.world_size) == (depth, width, ranks)


@pytest.mark.parametrize("name", schedule_names())
def test_every_schedule_alone_gets_the_least_plan_it_takes(name):
    plan, _ = choose(RequestedShape(world_size=None, layers=8, batch=32, schedule=name))
    assert plan.depth <= 2 and plan.world_size <= 2


def test_a_fold_of_more_stages_than_layers_is_refused():
    with pytest.raises(UsageError, match=r"stages: 2, layers: 1"):
        choose(RequestedShape(world_size=2, layers=1, batch=32, schedule="zb_v"))


@pytest.mark.parametrize(
    ("given", "depth", "width"),
    [
        ({}, 1, 2),
        ({"width": 1}, 2, 1),
        ({"schedule": "chimera"}, 2, 1),
        ({"schedule": "zb_v"}, 2, 2),
        ({"schedule": "zb_v", "depth": 4}, 4, 1),
        ({"schedule": "interleaved", "knobs": {"chunks": 2}}, 2, 2),
    ],
)
def test_teams_get_the_least_depth_that_the_schedule_takes(given, depth, width):
    """It was 1, which chimera, zb_v and interleaved refused."""
    plan, _ = choose(RequestedShape(world_size=2, layers=8, batch=32, tensor=2, **given))
    assert (plan.depth, plan.width) == (depth, width)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"depth": 4}, r"\(ranks: 4, depth: 4, tensor: 2\); start 8 ranks"),
        ({"depth": 4, "width": 2}, r"\(ranks: 4, depth: 4, width: 2, tensor: 2\); start 16 ranks"),
        ({"depth": 4, "width": 1, "schedule": "chimera"}, r"width: 1, tensor: 2\); start 8 ranks"),
    ],
)
def test_messages_count_the_ranks_of_teams(given, message):
    """Four ranks were called two, and four were to be started."""
    with pytest.raises(UsageError, match=message):
        choose(RequestedShape(world_size=2, layers=8, batch=32, tensor=2, **given))


@pytest.mark.parametrize(
    ("shape", "is_noted"),
    [
        ({"schedule": "interleaved"}, True),
        ({"schedule": "interleaved", "knobs": {"chunks": 2}}, False),
        ({"schedule": "gpipe"}, False),
        ({"schedule": "interleaved", "depth": 1}, False),
    ],
)
def test_a_schedule_that_interleaves_says_so_where_it_has_nothing_to_interleave(shape, is_noted):
    _, reason = choose(RequestedShape(world_size=2, layers=8, batch=32, **shape))
    assert ("--chunks 2 gives each rank two stages" in reason) is is_noted


def test_a_depth_beyond_the_ranks_leads_to_the_chunks_that_divide_it():
    with pytest.raises(UsageError, match=r"start 4 ranks, or change --depth, or give --chunks 2$"):
        choose(RequestedShape(world_size=2, layers=8, batch=32, schedule="interleaved", depth=4))
