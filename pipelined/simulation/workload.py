"""What a step asks of a machine: seconds and bytes of each stage's microbatch, and the parameters that stages hold.

The rule: this is the model cut into stages, whatever the schedule, the number of groups and the machine are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipelined.errors import UsageError
from pipelined.programs.bucket_names import Stages


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """What one microbatch costs in one stage; a schedule that halves its microbatches halves all of it.

    Args:
        forward: seconds.
        backward: seconds of a whole backward.
        backward_input: seconds of the half that gives the input's gradient; half of the backward if not given.
        backward_weight: seconds of the half that gives the weights'; the rest of the backward if not given.
        again: seconds of the forward that runs again in a backward where activations are recomputed; as the forward
            if not given.
        update: seconds of the optimizer's update of the stage, once a step.
        message_bytes: what it sends on to the next stage, and what comes back from there as a gradient.
        coding: seconds that each of these spends in a codec, on both sides together; the device computes meanwhile.
        activation_bytes: what it keeps from its forward to its backward, input and output with it.
        pending_bytes: what it keeps of a split backward between its halves; as from the forward on if not given.
        boundary_bytes: what it keeps instead where activations are recomputed: input and output.
    Raises:
        UsageError: a duration is negative or not finite, an instruction takes no time, a size is negative.
    """

    forward: float = 1.0
    backward: float = 2.0
    backward_input: float | None = None
    backward_weight: float | None = None
    again: float | None = None
    update: float = 0.0
    message_bytes: int = 0
    coding: float = 0.0
    activation_bytes: int = 0
    pending_bytes: int | None = None
    boundary_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "backward_input", "backward_weight", "again", "update", "coding"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 <= seconds < math.inf:
                raise UsageError(f"the cost {name.replace('_', '-')}={seconds} is no duration; give finite seconds")
            if seconds == 0 and name not in ("update", "coding"):
                raise UsageError(f"the cost {name.replace('_', '-')} is 0 seconds; computing takes time, give more")
        if self.backward_weight is None and (self.backward_input or 0) >= self.backward:
            fact = f"the input half takes all of the backward (half: {self.backward_input}, whole: {self.backward})"
            raise UsageError(f"{fact}; give the weight half's seconds too, or a longer backward")
        for name in ("message_bytes", "activation_bytes", "pending_bytes", "boundary_bytes"):
            if (getattr(self, name) or 0) < 0:
                raise UsageError(f"{name.replace('_', '-')}={getattr(self, name)} is no size; give bytes from 0 up")

    @property
    def pending(self) -> int:
        """Bytes kept between the halves of a backward."""
        return self.activation_bytes if self.pending_bytes is None else self.pending_bytes

    def seconds(self, op: str, recompute: bool = False) -> float:
        """Seconds of one instruction, F, B, I or W; where activations are recomputed B and I hold a forward more."""
        if op == "F":
            return self.forward
        again = (self.forward if self.again is None else self.again) if recompute else 0.0
        if op == "B":
            return self.backward + again
        half = self.backward / 2 if self.backward_input is None else self.backward_input
        if op == "I":
            return half + again
        return self.backward - half if self.backward_weight is None else self.backward_weight


@dataclass(frozen=True)
class Parameters:
    """Parameters that the same stages hold, and whose gradients are therefore summed together.

    Args:
        stages: those that hold every one of them, ascending: most one, a tied embedding the first and the last.
        elements: numbers in them.
        tensors: how many parameters they are.
        itemsize: bytes of a number.
    Raises:
        UsageError: fewer numbers than none.
    """

    stages: Stages
    elements: int
    tensors: int = 1
    itemsize: int = 4

    def __post_init__(self) -> None:
        if self.elements < 0:
            raise UsageError(f"stages {self.stages} cannot have {self.elements} parameters; give 0 or more")

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize


@dataclass(frozen=True)
class Workload:
    """A model cut into stages.

    Args:
        stages: the cost of each, by number.
        parameters: the parameters of all stages, each once, by the stages that hold them.
    """

    stages: Sequence[StageCosts]
    parameters: Sequence[Parameters] = field(default=())

    @classmethod
    def even(cls, depth: int, costs: StageCosts, parameter_bytes: int = 0) -> "Workload":
        """Stages that all cost the same, with parameters of their own of so many bytes (a multiple of 4)."""
        parameters = [Parameters((stage,), parameter_bytes // 4) for stage in range(depth) if parameter_bytes]
        return cls([costs] * depth, parameters)

    @property
    def tensors(self) -> int:
        """Parameters of the whole model."""
        return sum(group.tensors for group in self.parameters)
