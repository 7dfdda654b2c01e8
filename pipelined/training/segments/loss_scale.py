"""The loss scale of a forward in float16.

Gradients below 2^-24 are zero in float16. So each loss is multiplied by a scale before its backward, and norm and
update are divided by it. Where the scaled gradients overflow, the step is skipped and the scale halved; after many
steps without an overflow it is doubled. All ranks decide by the same global norm. Scales are powers of two, so they
round nothing.

Source: P. Micikevicius et al., *Mixed Precision Training*, ICLR 2018; the constants are those of torch.amp.GradScaler.
"""

import math
from collections.abc import Mapping
from typing import Any

from pipelined.programs.plan import Plan, PlanError

INITIAL_SCALE = 2.0**16
GROWTH_INTERVAL = 2000
MAX_SCALE = 2.0**100
FIELD = "loss_scale"
"""The name of its state among the scalars of a checkpoint."""


class LossScale:
    """The scale of a run, equal on all ranks.

    Args:
        dynamic: whether it adapts; else it is always 1, and no step is skipped.

    Attributes:
        value: the scale of the next step.
    """

    def __init__(self, dynamic: bool):
        self.dynamic = dynamic
        self.value, self._growth_tracker = (INITIAL_SCALE, 0) if dynamic else (1.0, 0)

    def record(self, loss: float, norm: float) -> bool:
        """Adapt to the loss and the gradient norm of a step. Returns whether its update must be skipped.

        If the loss is not finite, or the norm is not finite at a scale of 1, no scale can help: training has diverged.
        """
        if not self.dynamic or not math.isfinite(loss):
            return False
        if math.isfinite(norm):
            self._growth_tracker += 1
            if self._growth_tracker == GROWTH_INTERVAL:
                self.value, self._growth_tracker = min(MAX_SCALE, 2.0 * self.value), 0
            return False
        if self.value == 1.0:
            return False
        self.value, self._growth_tracker = self.value / 2.0, 0
        return True

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside its tensors."""
        return {FIELD: [self.value, self._growth_tracker]} if self.dynamic else {}

    def restore(self, scalars: Mapping[str, Any]) -> None:
        """Go on with the state of a checkpoint; one without it begins with the first scale.

        Raises:
            ValueError: it has no scale that could have been saved.
        """
        if not self.dynamic:
            return
        value, good = scalars.get(FIELD, (INITIAL_SCALE, 0))
        if not (1.0 <= value <= MAX_SCALE and math.frexp(value)[0] == 0.5 and 0 <= good < GROWTH_INTERVAL):
            raise ValueError(f"no loss scale: {(value, good)!r:.80}")
        self.value = float(value)
        self._growth_tracker = int(good)


def require_scalable(plan: Plan, exact_sums: bool) -> None:
    """Refuse what does not go with a forward in float16.

    Raises:
        PlanError: it has no flush, or sums are exact.
    """
    remedy = "train in bfloat16, which needs no loss scale"
    if not plan.flushes:
        fact = f"{plan.schedule} updates a stage before the others' gradients are known, so none can skip a step"
        raise PlanError(f"{fact} that overflows in float16; {remedy}, or choose a schedule with a flush")
    if exact_sums:
        fact = "exact sums repeat a step when its gradients do not fit, and float16 skips it"
        raise PlanError(f"{fact}; {remedy}")
