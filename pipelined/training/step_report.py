"""The report of a step, equal on all ranks, and the refusal of a step whose numbers are not finite."""

import math
from dataclasses import dataclass

from pipelined.actors.agree import AgreedError


@dataclass(frozen=True)
class StepReport:
    """The results of a step; the same on every rank except the seconds.

    Args:
        grad_norm: the global gradient norm; without a flush the root mean square over the step's updates.
        staleness: without a flush, for each stage: the updates between the weights at which a gradient was computed
            and the weights to which it was applied; the mean over the step's microbatches.
        nbytes: payload that all ranks sent, without the sum that carries these numbers; without a flush also for
            microbatches of steps that follow.
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

    @property
    def is_finite(self) -> bool:
        """Whether loss and norm are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def check_finite(step: int, loss: float, norm: float) -> None:
    """Refuse a step if its loss or norm is not finite: later steps would not be finite either, and would be saved.

    Raises:
        AgreedError: on every rank, because all ranks have the same numbers.
    """
    if not (math.isfinite(loss) and math.isfinite(norm)):
        fact = f"loss or gradient norm of step {step + 1} is not finite (loss: {loss}, gradient norm: {norm})"
        remedy = "lower the learning rate, or warm up for longer, and go on from what was saved before"
        raise AgreedError(f"{fact}: training has diverged; {remedy}")
