"""Who does what in the whole job."""

import pytest

from pipelined.programs.plan import Plan, PlanError


def test_replicas_of_a_stage_span_pipes_and_groups():
    plan = Plan("chimera", depth=4, width=2, microbatch=1, microbatches=4)
    assert plan.world_size == 8
    assert plan.holders(0) == (0, 3, 4, 7)
    assert plan.holders(1) == (1, 2, 5, 6)
    assert plan.stages_of(5) == [1, 2]
    assert plan.position(6) == (1, 2)


def test_microbatches_are_numbered_group_by_group():
    plan = Plan("gpipe", depth=2, width=3, microbatch=5, microbatches=4)
    assert [plan.global_microbatch(g, m) for g in range(3) for m in range(4)] == list(range(12))
    assert plan.batch == 60


def test_an_odd_depth_for_chimera_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="3"):
        Plan("chimera", depth=3, width=1, microbatch=1, microbatches=3)


def test_a_count_below_one_is_refused_by_the_flag_s_name():
    with pytest.raises(PlanError, match=r"--width must be at least 1 \(it is 0\)"):
        Plan("gpipe", depth=2, width=0, microbatch=1, microbatches=1)


@pytest.mark.parametrize(
    "done, evaluate_every, save_every, drain",
    [
        (0, 0, 0, 100),
        (0, 10, 0, 10),
        (10, 10, 0, 20),
        (7, 10, 4, 8),
        (8, 10, 4, 10),
        (96, 0, 40, 100),
        (0, 300, 200, 100),
    ],
)
def test_a_segment_without_a_flush_ends_at_the_first_evaluation_checkpoint_or_end(
    done, evaluate_every, save_every, drain
):
    assert Plan("pipedream_2bw", 2, 1, 1, 4).segment(done, 100, evaluate_every, save_every) == range(done, drain)
    assert Plan("one_f_one_b", 2, 1, 1, 4).segment(done, 100, evaluate_every, save_every) == range(done, done + 1)


def test_segments_without_a_flush_end_at_every_multiple_of_the_numbers_given():
    plan, drains, done = Plan("pipedream_2bw", 2, 1, 1, 4), [], 0
    while done < 60:
        done = plan.segment(done, 60, 9, 4).stop
        drains.append(done)
    assert drains == [number for number in range(1, 61) if not number % 9 or not number % 4 or number == 60]
