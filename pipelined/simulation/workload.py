"""The workload of a step: seconds and bytes per microbatch of each stage, and the parameters that the stages hold.

It describes the model cut into stages; it does not depend on the schedule, the number of groups or the machine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from pipelined.errors import UsageError
from pipelined.programs.costs import halves
from pipelined.programs.plan import Plan
from pipelined.programs.updates.bucket_names import Stages

MOMENTS = 2
"""Numbers that AdamW keeps per number of a parameter; it also keeps one count of updates per parameter."""
COUNT_BYTES = 4
NUMBERS_OF_A_MASTER = 2
"""Numbers that masters take per number of a parameter: the copy and its gradient."""
EXACT_BYTES = 8
"""Bytes of a number in an exact sum, a float64."""


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """The cost of one microbatch in one stage; a schedule that halves its microbatches halves every cost.

    Args:
        forward: seconds.
        backward: seconds of a whole backward.
        backward_input: seconds of the input half; None: half of `backward`.
        backward_weight: seconds of the weight half; None: the rest of `backward`.
        recomputed_forward: seconds of the repeated forward in a backward with recomputation; None: as `forward`.
        update: seconds of the optimizer's update of the stage, once per step.
        delayed_update: seconds of a delayed update of the stage, which runs beside the next step.
        message_bytes: bytes of the activation to the next stage, and of the gradient that comes back.
        coding: seconds that each of these spends in a codec, both sides together; the device computes meanwhile.
        activation_bytes: bytes kept from the forward to the backward, input and output included.
        pending_bytes: bytes kept between the halves of a split backward; None: as `activation_bytes`.
        boundary_bytes: bytes kept instead with recomputation: input and output.
        frozen_bytes: bytes held during the whole step: the stage's buffers, parameters without a gradient, and the
            weights that were gathered for it.
    Raises:
        UsageError: a duration is negative or not finite, an instruction takes 0 seconds, or a size is negative.
    """

    forward: float = 1.0
    backward: float = 2.0
    backward_input: float | None = None
    backward_weight: float | None = None
    recomputed_forward: float | None = None
    update: float = 0.0
    delayed_update: float = 0.0
    message_bytes: int = 0
    coding: float = 0.0
    activation_bytes: int = 0
    pending_bytes: int | None = None
    boundary_bytes: int = 0
    frozen_bytes: int = 0

    def __post_init__(self) -> None:
        passes = "forward", "backward", "backward_input", "backward_weight", "recomputed_forward"
        for name in (*passes, "update", "delayed_update", "coding"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 <= seconds < math.inf:
                raise UsageError(f"the cost {name.replace('_', '-')} must be finite seconds (got: {seconds})")
            if seconds == 0 and name in passes:
                raise UsageError(f"the cost {name.replace('_', '-')} is 0 seconds; computing takes time, give more")
        self._halves()
        for name in ("message_bytes", "activation_bytes", "pending_bytes", "boundary_bytes", "frozen_bytes"):
            if (getattr(self, name) or 0) < 0:
                raise UsageError(f"{name.replace('_', '-')}={getattr(self, name)} is no size; give bytes from 0 up")

    @property
    def pending(self) -> int:
        """Bytes kept between the halves of a backward."""
        return self.activation_bytes if self.pending_bytes is None else self.pending_bytes

    def seconds(self, op: str, recompute: bool = False) -> float:
        """Seconds of one instruction, F, B, I or W; with recomputation B and I include a forward."""
        if op == "F":
            return self.forward
        repeat = (self.forward if self.recomputed_forward is None else self.recomputed_forward) if recompute else 0.0
        if op == "B":
            return self.backward + repeat
        backward_input, backward_weight = self._halves()
        return backward_input + repeat if op == "I" else backward_weight

    def _halves(self) -> tuple[float, float]:
        return halves(self.backward, self.backward_input, self.backward_weight)


@dataclass(frozen=True)
class Parameters:
    """Parameters that the same stages hold, so that their gradients are summed together.

    Args:
        stages: the stages that hold each of them, ascending: usually one; for a tied embedding the first and the last.
        elements: the numbers in all of them.
        tensors: the number of parameters.
        itemsize: bytes of a number.
        optimizer_bytes: bytes that the optimizer keeps for all of them; None: as many as AdamW.
        exact: whether their gradients are summed exactly: in float64, beside the gradients themselves.
        master_itemsize: bytes of a number of the copies that the optimizer updates, each with a gradient; 0: it has
            none. They are among `optimizer_bytes`, where these are given.
        updaters: the ranks that divide their update.
    Raises:
        UsageError: `elements` is negative.
    """

    stages: Stages
    elements: int
    tensors: int = 1
    itemsize: int = 4
    optimizer_bytes: int | None = None
    exact: bool = False
    master_itemsize: int = 0
    updaters: int = 1

    def __post_init__(self) -> None:
        if self.elements < 0:
            raise UsageError(f"stages {self.stages} cannot have {self.elements} parameters; give 0 or more")

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def sum_itemsize(self) -> int:
        """Bytes of a number while it is summed over ranks."""
        return EXACT_BYTES if self.exact else self.itemsize

    @property
    def sum_bytes(self) -> int:
        """Bytes of what is summed over ranks."""
        return self.elements * self.sum_itemsize

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients and, where they are summed exactly, of the sums."""
        return self.nbytes + (self.sum_bytes if self.exact else 0)

    @property
    def kept_bytes(self) -> int:
        """Bytes that the optimizer keeps after its first update, masters included."""
        if self.optimizer_bytes is not None:
            return self.optimizer_bytes
        copies = (NUMBERS_OF_A_MASTER if self.master_itemsize else 0) + MOMENTS
        return copies * self.elements * (self.master_itemsize or self.itemsize) + COUNT_BYTES * self.tensors


@dataclass(frozen=True)
class Workload:
    """A model cut into stages.

    Args:
        stages: the cost of each stage, in order.
        parameters: the parameters of all stages, each in one entry, grouped by the stages that hold them.
    """

    stages: Sequence[StageCosts]
    parameters: Sequence[Parameters] = field(default=())

    @classmethod
    def even(cls, depth: int, costs: StageCosts, parameter_bytes: int = 0) -> "Workload":
        """Stages of equal cost, each with parameters of its own of `parameter_bytes` bytes (a multiple of 4)."""
        parameters = [Parameters((stage,), parameter_bytes // 4) for stage in range(depth) if parameter_bytes]
        return cls([costs] * depth, parameters)

    def with_divided_updates(self, plan: Plan) -> "Workload":
        """The same, where the ranks that hold a parameter divide its update: each keeps its part of the state.

        Args:
            plan: the ranks; the parameters have the elements of all members of a team together.
        """
        shares = [(bucket, len(plan.holders(*bucket.stages)) * plan.tensor) for bucket in self.parameters]
        parameters = [
            replace(bucket, optimizer_bytes=ceil(bucket.kept_bytes / ranks), updaters=ranks) for bucket, ranks in shares
        ]
        return replace(self, parameters=parameters)

    @property
    def tensors(self) -> int:
        """The number of parameters (tensors) of the whole model."""
        return sum(bucket.tensors for bucket in self.parameters)
