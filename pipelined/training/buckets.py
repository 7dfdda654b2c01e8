"""Gradients laid out for their all-reduce: one flat buffer for all parameters that the same stages hold.

A parameter belongs to every stage that has its name: most to one, a tied embedding to the first and the last. So a
bucket is named by its stages; it is complete on a rank when the last backward of each of them is done there, and it is
summed over every rank that holds any of them, each of which adds its own sum in once. All ranks derive the same
buckets, in the same order, from the plan and the names alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from pipelined.programs.bucket_names import Stages
from pipelined.programs.plan import Plan


@dataclass
class Bucket:
    """Parameters that are summed together.

    Args:
        stages: those that hold every parameter in here, ascending.
        holders: the ranks that hold any of these stages, ascending; the first of them owns the parameters.
        parameters: by global name, in the model's order.
        gradient: all their gradients, flat; each parameter's `.grad` is a view of it.
    """

    stages: Stages
    holders: tuple[int, ...]
    parameters: dict[str, nn.Parameter]
    gradient: torch.Tensor

    @property
    def owner(self) -> int:
        return self.holders[0]

    def move(self, memory: np.ndarray) -> None:
        """Let the gradient lie in other memory, of as many bytes, with the values it has.

        Raises:
            ValueError: of another size.
        """
        if memory.nbytes != self.gradient.nbytes:
            fact = f"memory of another size than the gradient (memory: {memory.nbytes}, gradient: "
            raise ValueError(f"{fact}{self.gradient.nbytes} bytes); allocate as many bytes")
        moved = torch.from_numpy(memory).view(self.gradient.dtype)
        self.gradient = moved.copy_(self.gradient)
        view_gradients(self.parameters, moved)


def fill_bucket(plan: Plan, stages: Stages, parameters: dict[str, nn.Parameter]) -> Bucket:
    """Give these parameters one flat gradient, zero at first."""
    first = next(iter(parameters.values()))
    gradient = torch.zeros(sum(p.numel() for p in parameters.values()), dtype=first.dtype, device=first.device)
    view_gradients(parameters, gradient)
    return Bucket(stages, plan.holders(*stages), parameters, gradient)


def view_gradients(parameters: Mapping[str, nn.Parameter], gradient: torch.Tensor) -> None:
    """Make each parameter's `.grad` its part of this flat tensor, in order."""
    start = 0
    for parameter in parameters.values():
        parameter.grad = gradient[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
