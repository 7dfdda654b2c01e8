"""The loss of one microbatch: a mean, or a sum with its count.

The loss of a step is the sum of what its microbatches give over the sum of their counts, where a mean counts 1. So it
is that of the whole batch, also where microbatches have unequal numbers of tokens.
"""

from dataclasses import dataclass
from typing import Any

import torch

from pipelined.errors import UsageError


@dataclass(frozen=True)
class CountedLoss:
    """What a loss function gives for one microbatch.

    Args:
        total: a scalar, from which the backward begins: the mean, or the sum over what is counted.
        count: the number of what is summed, such as tokens; None for a mean.
    """

    total: torch.Tensor
    count: float | None = None

    @classmethod
    def of(cls, result: Any) -> "CountedLoss":
        """Read the result of a loss function: a scalar, or (sum, count).

        Raises:
            UsageError: it is something else; a count is negative.
        """
        pair = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        total, count = pair[0], None if pair[1] is None else float(pair[1])
        if not isinstance(total, torch.Tensor) or total.numel() != 1:
            given = f"shape {tuple(total.shape)}" if isinstance(total, torch.Tensor) else type(total).__name__
            raise UsageError(f"the loss gives no scalar ({given}); let it return the mean, or the sum and the count")
        if count is not None and count < 0:
            raise UsageError(
                f"the loss counts less than nothing (count: {count:g}); let it return the sum and the count"
            )
        return cls(total, count)
