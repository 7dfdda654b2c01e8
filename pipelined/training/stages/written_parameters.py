"""Parameters that a forward writes, as an embedding with `max_norm` does: refused where forwards would differ.

Each replica of a stage computes only some microbatches, so it would write only for these; a recomputed forward would
write a second time. One replica that computes each forward once is a plain loop.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from pipelined.errors import UsageError

T = TypeVar("T")


def run_without_writes(parameters: Mapping[str, torch.Tensor], forward: Callable[[], T], where: str) -> T:
    """Run a forward that may not write these parameters.

    Args:
        where: names the stage, and why it may not, for the message.
    Raises:
        UsageError: it has written one.
    """
    writes = {name: parameter._version for name, parameter in parameters.items()}
    result = forward()
    for name, parameter in parameters.items():
        if parameter._version != writes[name]:
            remedy = "change it after the update, in the step of your optimizer, or train one pipeline of one direction"
            raise UsageError(f"a forward writes parameter {name} of {where}; {remedy} without recomputation")
    return result
