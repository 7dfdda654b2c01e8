"""Buckets: the gradients of parameters that are summed together, and how their memory lies.

Gradients lie in buckets: one flat buffer for all parameters that the same stages hold. A parameter belongs to every
stage that has its name: most parameters to one stage, a tied embedding to the first and the last. So a bucket is named
by its stages. On a rank it is complete after the last backward of all its stages that the rank holds. It is summed over
every rank that holds any of its stages; each rank contributes its own sum once. All ranks derive the same buckets, in
the same order, from the plan and the names alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise

import numpy as np
import torch
from torch import nn

from pipelined.programs.plan import Plan
from pipelined.programs.updates.bucket_names import Stages
from pipelined.training.sums.update_shards import UpdateShards

NORM_PIECE = 1 << 22
"""Numbers of which a norm is taken at once."""


@dataclass
class Bucket:
    """Parameters that are summed together.

    Args:
        stages: the stages that hold the parameters of this bucket, ascending.
        holders: the ranks that hold any of these stages, ascending; the first of them owns the parameters.
        parameters: by global name, in the model's order.
        gradient: all their gradients, flat; each parameter's `.grad` is a view of it.
        exact: their sums on a grid, float64 and flat; None: the gradient itself is summed. See `exact_sums`.
        update_shards: how the holders divide the update; None: each makes all of it.
    """

    stages: Stages
    holders: tuple[int, ...]
    parameters: dict[str, nn.Parameter]
    gradient: torch.Tensor
    exact: torch.Tensor | None = None
    update_shards: UpdateShards | None = None

    @property
    def summed(self) -> torch.Tensor:
        """What is summed over the holders."""
        return self.gradient if self.exact is None else self.exact

    @property
    def owner(self) -> int:
        return self.holders[0]

    @property
    def updated(self) -> Mapping[str, nn.Parameter]:
        """What this rank updates, by name: the parameters, or its rows of them."""
        return self.parameters if self.update_shards is None else self.update_shards.updated

    @property
    def spans(self) -> Mapping[str, tuple[int, int]]:
        """The elements of the gradient of what this rank updates, by name: [low, high)."""
        if self.update_shards is not None:
            return self.update_shards.spans
        ends = accumulate((parameter.numel() for parameter in self.parameters.values()), initial=0)
        return dict(zip(self.parameters, pairwise(ends), strict=True))

    def squares(self) -> dict[str, float]:
        """The squared norm of the gradient of what this rank updates of each parameter, in float64."""
        return squared_norms({name: self.gradient[low:high] for name, (low, high) in self.spans.items()})

    def attach_gradient_views(self) -> None:
        """Give what this rank updates its gradient: that part of the bucket's."""
        for name, (low, high) in self.spans.items():
            self.updated[name].grad = self.gradient[low:high].view_as(self.updated[name])

    def pack_values(self) -> None:
        """Put the new values of what this rank has updated where their gradients were, for the other holders."""
        for name, (low, high) in self.spans.items():
            self.gradient[low:high].copy_(self.updated[name].detach().reshape(-1))

    def unpack_values(self) -> None:
        """Take the new values that lie where the gradients were, and clear their memory."""
        with torch.no_grad():
            for parameter in self.parameters.values():
                assert parameter.grad is not None  # it is a view of the bucket's gradient
                parameter.copy_(parameter.grad)
        self.clear()

    def rebase(self, memory: np.ndarray) -> None:
        """Move what is summed, with its values, to other memory of the same size.

        Raises:
            ValueError: the memory has another size.
        """
        summed = self.summed
        if memory.nbytes != summed.nbytes:
            fact = f"memory of another size than what is summed (memory: {memory.nbytes}, summed: "
            raise ValueError(f"{fact}{summed.nbytes} bytes); allocate as many bytes")
        moved = torch.from_numpy(memory).view(summed.dtype).copy_(summed)
        if self.exact is not None:
            self.exact = moved
        else:
            self.gradient = moved
            view_gradients(self.parameters, moved)
            if self.update_shards is not None:
                self.attach_gradient_views()

    def clear(self) -> None:
        """Set all that was accumulated to 0."""
        for tensor in {id(tensor): tensor for tensor in (self.gradient, self.summed)}.values():
            tensor.zero_()


def squared_norms(gradients: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The squared norm of each of these gradients, in float64; they are flat.

    Cost: on a GPU one transfer for all of them; on a CPU, which copies them to float64, 8 `NORM_PIECE` bytes.
    """
    if not gradients:
        return {}
    pieces = {name: g.split(NORM_PIECE) if len(g) > NORM_PIECE else (g,) for name, g in gradients.items()}
    norms = torch._foreach_norm(list(chain(*pieces.values())), dtype=torch.float64)
    squares = (norm**2 for norm in torch.stack(norms).cpu().tolist())
    return {name: sum(islice(squares, len(parts))) for name, parts in pieces.items()}


def clear(buckets: Iterable[Bucket]) -> None:
    """Clear each of these buckets."""
    for bucket in buckets:
        bucket.clear()


def fill_bucket(plan: Plan, stages: Stages, parameters: dict[str, nn.Parameter], member: int = 0) -> Bucket:
    """Make a bucket of a member of a team: one flat gradient for these parameters, filled with zeros."""
    example = next(iter(parameters.values()))
    elements = sum(parameter.numel() for parameter in parameters.values())
    gradient = torch.zeros(elements, dtype=example.dtype, device=example.device)
    view_gradients(parameters, gradient)
    return Bucket(stages, plan.holders(*stages, member=member), parameters, gradient)


def view_gradients(parameters: Mapping[str, nn.Parameter], gradient: torch.Tensor) -> None:
    """Make each parameter's `.grad` a view of its part of this flat tensor, in order."""
    start = 0
    for parameter in parameters.values():
        parameter.grad = gradient[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
