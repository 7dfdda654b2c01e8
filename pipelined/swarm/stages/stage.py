"""What a peer of a swarm computes with: one stage's parameters, gradient sums and optimizer, behind a few methods.

The one rule: what comes out depends on parameters and arguments alone, so that a microbatch computed again, elsewhere,
gives the same bits. Methods run on the peer's device, one at a time; none of them knows of peers, steps or messages.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from transports import Block


class Microbatch(NamedTuple):
    """The name of a microbatch: everyone can find its data again from the seed and this."""

    step: int
    index: int


class Passed(NamedTuple):
    """What a backward pass gives.

    Args:
        gradients: of the stage's inputs, in their order; none where they have none (tokens).
        loss: summed over the microbatch's samples, on the last stage; all gradients are of this very number.
    """

    gradients: Sequence[Any]
    loss: float | None = None


class NotFinite(ValueError):
    """What was computed is infinite or no number; nothing of it was counted."""


class SwarmStage(Protocol):
    """One stage.

    Attributes:
        sums: the gradients of all parameters, flat, summed over what was counted since `clear`; float32 or float64.
        model: a digest of what the stage is and of the code that computes it, the same on all peers of one swarm.
    """

    sums: np.ndarray
    model: str

    def expects(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        """Dtype and shape of each input of `forward` (and of its gradients), the batch first."""

    def expects_given(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        """The same of what `backward` is given: gradients of the outputs, or the last stage's labels."""

    def forward(self, microbatch: Microbatch, inputs: Sequence[Block]) -> Sequence[Any]:
        """Outputs for the next stage; keeps nothing. Not called on the last stage.

        Raises:
            NotFinite: the outputs are none that another stage can compute with.
        """

    def backward(self, microbatch: Microbatch, inputs: Sequence[Block], given: Sequence[Block], count: bool) -> Passed:
        """Compute forward again, then backward.

        Args:
            given: gradients of the outputs, or, on the last stage, the labels.
            count: add the parameters' gradients to `sums`; else they are thrown away.
        Raises:
            NotFinite: the loss or a gradient is no finite number.
        """

    def evaluate(self, inputs: Sequence[Block], labels: Sequence[Block] = ()) -> Sequence[Any]:
        """Forward of validation data, with no random numbers; nothing is kept or counted.

        Args:
            labels: given to the last stage alone; of fewer samples than the inputs where only the first count.
        Returns: outputs for the next stage; of the last one array, float64, with the loss of each sample that counts.
        Raises:
            NotFinite: as `forward` and `backward`.
        """

    def clear(self) -> None:
        """Set `sums` to zero."""

    def square(self, total: np.ndarray) -> float:
        """The sum of the squares of a gradient, in float64: what the global norm is made of."""

    def apply(self, step: int, total: np.ndarray, scale: float) -> None:
        """Take one optimizer step with `total * scale` for the gradient; the same bits on every peer."""

    def parts(self, flat: np.ndarray) -> Mapping[str, Any]:
        """Views of an array that is laid out like `sums`, each parameter's by its name."""

    def state(self) -> Mapping[str, Any]:
        """Every tensor that the next step depends on, parameters and optimizer, by name; views, not copies."""

    def load(self, state: Mapping[str, Block]) -> None:
        """Take all of `state` over, losslessly.

        Raises:
            ValueError: names, dtypes or shapes differ; nothing is changed.
        """
