"""A step that is not finite is reported with a remedy that can help."""

import math

import pytest

from pipelined.training.segments.step_report import StepReport, diverged


@pytest.mark.parametrize(
    ("step", "more", "remedy"),
    [
        (5, {}, "lower the learning rate, or warm up for longer, and go on from what was saved before"),
        (0, {}, "no update was made yet"),
        (
            5,
            {"staleness": (1.0, 0.0)},
            "stages were updated meanwhile, so load a checkpoint or begin anew; lower the learning rate",
        ),
        (0, {"staleness": (1.0, 0.0)}, "stages were updated meanwhile, so load a checkpoint or begin anew; look at"),
        (0, {"loss_scale": 65536.0}, "float16 holds numbers up to 65,504; take bfloat16"),
        (5, {"loss_scale": 1.0}, "float16 holds numbers up to 65,504; take bfloat16"),
    ],
)
def test_the_remedy_follows_from_the_step_the_schedule_and_the_loss_scale(step, more, remedy):
    report = StepReport(step, math.nan, math.nan, 1e-3, step_s=1.0, idle_fraction=0.0, stop=False, **more)
    error = str(diverged(report))
    fact = f"loss or gradient norm of step {step} (counted from 0) is not finite (loss: nan, gradient norm: nan)"
    assert error.startswith(fact)
    assert f"training has diverged; {remedy}" in error
