"""The report of a step, equal on all ranks, and the refusal of a step whose numbers are not finite."""

import math
from dataclasses import dataclass

from pipelined.errors import AgreedError


@dataclass(frozen=True)
class StepReport:
    """The results of a step; the same on every rank except the seconds.

    Args:
        step: the number of the step, counted from 0.
        grad_norm: the global gradient norm; without a flush the root mean square over the step's updates.
        staleness: without a flush, for each stage: the updates between the weights at which a gradient was computed
            and the weights to which it was applied; the mean over the step's microbatches.
        nbytes: payload that all ranks sent, without the sum that carries these numbers; without a flush also for
            microbatches of steps that follow.
        loss_scale: by which the loss was multiplied; None: it is not scaled.
        skipped: whether the scaled gradients overflowed, so that nothing was updated.
        is_counted: whether any count of the losses was above 0; else there is no loss.
    """

    step: int
    loss: float
    grad_norm: float
    lr: float
    step_s: float
    idle_fraction: float
    stop: bool
    staleness: tuple[float, ...] = ()
    nbytes: int = 0
    loss_scale: float | None = None
    skipped: bool = False
    is_counted: bool = True

    @property
    def is_finite(self) -> bool:
        """Whether the loss is finite, and the norm too unless the step was skipped."""
        return math.isfinite(self.loss) and (self.skipped or math.isfinite(self.grad_norm))


def diverged(report: StepReport) -> AgreedError:
    """The error of a step that is not finite: later steps would not be finite either, and would be saved.

    A step without a loss has not diverged, and is told apart. All ranks have the same numbers, so all raise the error.
    """
    if not report.is_counted:
        fact = f"the counts of step {report.step} (counted from 0) are all 0, so it has no loss"
        return AgreedError(f"{fact}; give batches with at least one target that counts")
    numbers = f"loss: {report.loss}, gradient norm: {report.grad_norm}"
    fact = f"loss or gradient norm of step {report.step} (counted from 0) is not finite ({numbers})"
    return AgreedError(f"{fact}: training has diverged; {_remedy(report)}")


def _remedy(report: StepReport) -> str:
    if report.loss_scale is not None:
        return "float16 holds numbers up to 65,504; take bfloat16, or make inputs, initial values or the loss smaller"
    remedy = "lower the learning rate, or warm up for longer, and go on from what was saved before"
    if not report.step:
        remedy = "look at inputs, initial values and the loss for numbers that are not finite"
    if report.staleness:
        return f"stages were updated meanwhile, so load a checkpoint or begin anew; {remedy}"
    return remedy if report.step else f"no update was made yet, so {remedy}"
