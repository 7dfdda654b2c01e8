"""The loss scale halves where gradients overflow, doubles after many steps that fit, and can be saved."""

import pytest

from pipelined.programs.plan import Plan, PlanError
from pipelined.training.segments.loss_scale import (
    GROWTH_INTERVAL,
    INITIAL_SCALE,
    MAX_SCALE,
    LossScale,
    require_scalable,
)


def test_the_scale_doubles_after_an_interval_of_steps_that_fit_and_an_overflow_halves_it_and_begins_the_interval_anew():
    scale = LossScale(dynamic=True)
    for steps, value in ((GROWTH_INTERVAL - 1, INITIAL_SCALE), (1, 2 * INITIAL_SCALE)):
        assert not any(scale.record(1.0, 1.0) for _ in range(steps))
        assert scale.value == value
    assert not scale.record(1.0, 1.0) and scale.record(1.0, float("inf"))
    assert scale.state == {"loss_scale": [INITIAL_SCALE, 0]}


def test_the_scale_stops_at_the_largest():
    scale = LossScale(dynamic=True)
    scale.restore({"loss_scale": [MAX_SCALE, GROWTH_INTERVAL - 1]})
    scale.record(1.0, 1.0)
    assert scale.state == {"loss_scale": [MAX_SCALE, 0]}


def test_a_fixed_scale_is_one_and_has_no_state():
    scale = LossScale(dynamic=False)
    scale.restore({"loss_scale": [8.0, 3]})
    assert not scale.record(1.0, 1.0) and (scale.value, scale.state) == (1.0, {})


def test_a_checkpoint_without_a_scale_begins_with_the_first():
    scale = LossScale(dynamic=True)
    scale.record(1.0, float("inf"))
    scale.restore({})
    assert scale.state == {"loss_scale": [INITIAL_SCALE, 0]}


def test_a_loss_that_is_not_finite_and_an_overflow_without_a_scale_are_not_skipped():
    scale = LossScale(dynamic=True)
    assert not scale.record(float("nan"), float("nan")) and scale.value == INITIAL_SCALE
    for _ in range(16):
        assert scale.record(1.0, float("inf"))
    assert scale.value == 1.0 and not scale.record(1.0, float("inf"))
    assert not LossScale(dynamic=False).record(1.0, float("inf"))


@pytest.mark.parametrize("saved", [[3.0, 0], [0.5, 0], [2.0**101, 0], [float("nan"), 0], [2.0, -1], [2.0], "x", 7])
def test_a_scale_that_was_never_saved_is_refused(saved):
    with pytest.raises((ValueError, TypeError)):
        LossScale(dynamic=True).restore({"loss_scale": saved})


def test_what_cannot_skip_a_step_is_refused():
    with pytest.raises(PlanError, match="none can skip a step"):
        require_scalable(Plan("pipedream_2bw", 2, 1, 1, 4), exact_sums=False)
    with pytest.raises(PlanError, match="exact sums"):
        require_scalable(Plan("gpipe", 2, 1, 1, 4), exact_sums=True)
