"""A step that is not finite is reported with a remedy that can help."""

import math

import pytest

from pipelined.training.step_report import StepReport, diverged


@pytest.mark.parametrize(
    ("step", "loss_scale", "remedy"),
    [
        (5, None, "lower the learning rate, or warm up for longer, and go on from what was saved before"),
        (0, None, "no update was made yet"),
        (0, 65536.0, "float16 holds numbers up to 65,504; take bfloat16"),
        (5, 1.0, "float16 holds numbers up to 65,504; take bfloat16"),
    ],
)
def test_the_remedy_follows_from_the_step_and_the_loss_scale(step, loss_scale, remedy):
    report = StepReport(
        step, math.nan, math.nan, 1e-3, step_s=1.0, idle_fraction=0.0, stop=False, loss_scale=loss_scale
    )
    error = str(diverged(report))
    assert error.startswith(f"loss or gradient norm of step {step + 1} is not finite (loss: nan, gradient norm: nan)")
    assert f"training has diverged; {remedy}" in error
