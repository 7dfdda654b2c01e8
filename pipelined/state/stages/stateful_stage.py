"""The interface that this room needs of a stage: its state in and out, and the steps that it missed."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from transports import Block


class StatefulStage(Protocol):
    """A stage of which the state can be copied, loaded, and brought forward by steps.

    Attributes:
        sums: the gradients of all parameters, flat, summed over what was counted since `clear`; float32 or float64.
    """

    sums: np.ndarray

    def clear(self) -> None:
        """Set `sums` to zero."""

    def apply(self, step: int, total: np.ndarray, scale: float) -> None:
        """Apply one optimizer step with `total * scale` as the gradient; the same bits on every peer.

        A scale of 0 updates nothing but what the stage keeps of its sums: the step is computed again.
        """

    def state(self) -> Mapping[str, Any]:
        """Every tensor that the next step depends on, parameters and optimizer, by name; views, not copies."""

    def load(self, state: Mapping[str, Block]) -> None:
        """Load all of `state`, losslessly.

        Raises:
            ValueError: names, dtypes or shapes differ; nothing is changed.
        """
