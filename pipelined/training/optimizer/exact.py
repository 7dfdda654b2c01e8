"""AdamW and LAMB from operations that are rounded once each: replicas on unlike processors keep equal bits.

Torch's own optimizers fuse a product with a sum on one processor and not on another. Here every operation on a tensor
is a kernel of its own (+, -, *, / and the square root, which IEEE 754 rounds the same way everywhere), scalars are
computed in float64 on the host, and sums over elements are taken in a fixed tree. A tensor's update depends on that
tensor's values alone, so a stage needs no other.

Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, algorithm 2; You et al., Large Batch Optimization
for Deep Learning, algorithm 2.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from pipelined.errors import UsageError
from pipelined.training.optimizer.config import FusedAdamW, OptimizerConfig
from pipelined.training.optimizer.state import MOMENTS

PIECE = 1 << 20
"""Elements that are squared at once; this bounds the memory of a norm."""


class LearnedTensor(NamedTuple):
    """One tensor and its optimizer state; all of one shape.

    Args:
        value: the parameter.
        exp_avg: the running mean of its gradients; zeros before the first update.
        exp_avg_sq: the running mean of their squares.
    """

    value: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor


Update = Callable[[LearnedTensor, torch.Tensor, int, float, OptimizerConfig], None]
"""Change one tensor in place: by its gradient, the number of the update (from 1), the rate and the settings."""


@torch.no_grad()
def adamw(learned: LearnedTensor, gradient: torch.Tensor, update: int, rate: float, settings: OptimizerConfig) -> None:
    """One update of AdamW; vectors (biases, norms) do not decay.

    Cost: 12 passes over the tensor, and twice its memory.
    """
    direction = _direction(learned, gradient, update, settings)
    learned.value.mul_(1.0 - rate * _decay(learned, settings))
    learned.value.sub_(direction.mul_(rate))


@torch.no_grad()
def lamb(learned: LearnedTensor, gradient: torch.Tensor, update: int, rate: float, settings: OptimizerConfig) -> None:
    """One update of LAMB: a matrix moves by `rate` times its own norm, at any scale of the gradient.

    Vectors neither decay nor adapt: biases start at 0, and a step in proportion to that would never change them.

    Cost: that of `adamw`, and two norms.
    """
    direction = _direction(learned, gradient, update, settings)
    if learned.value.dim() >= 2:
        direction.add_(learned.value * _decay(learned, settings))
        rate *= trust_ratio(learned.value, direction)
    learned.value.sub_(direction.mul_(rate))


UPDATES: Mapping[str, Update] = {"adamw": adamw, "lamb": lamb}


def find_update(name: str) -> Update:
    """Find an optimizer by name.

    Raises:
        UsageError: no optimizer has this name.
    """
    if name not in UPDATES:
        raise UsageError(f"no optimizer is called {name!r}; choose one of {', '.join(UPDATES)}")
    return UPDATES[name]


@dataclass(frozen=True)
class LambConfig(OptimizerConfig):
    """The settings of LAMB, with the rates of `OptimizerConfig`. It needs whole matrices, because it takes norms."""

    def build(self, parameters: Mapping[str, nn.Parameter]) -> "Lamb":
        """LAMB for all parameters that are not frozen, in the order of names."""
        return Lamb([parameters[name] for name in sorted(parameters) if parameters[name].requires_grad], self)


class Lamb(FusedAdamW):
    """LAMB as an optimizer of torch; its state has the names of AdamW's.

    Cost: an update takes the memory of three tensors of the largest parameter meanwhile, and of its squares in pieces.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], settings: OptimizerConfig):
        super().__init__([{"params": [*parameters]}], lr=settings.lr, betas=settings.betas, eps=settings.eps)
        self._settings = settings

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update of each parameter that has a gradient, at the rate of its group; there is no closure."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group["lr"])

    def _update(self, parameter: nn.Parameter, gradient: torch.Tensor, rate: float) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state |= {name: torch.zeros_like(parameter) for name in MOMENTS}
        state["step"] += 1
        learned = LearnedTensor(parameter, *(state[name] for name in MOMENTS))
        lamb(learned, gradient, int(state["step"]), rate, self._settings)


def trust_ratio(value: torch.Tensor, direction: torch.Tensor) -> float:
    """The factor of a tensor's rate: its norm divided by its direction's, or 1 if either is 0."""
    norm, direction_norm = math.sqrt(sum_of_squares(value)), math.sqrt(sum_of_squares(direction))
    return norm / direction_norm if norm > 0.0 and direction_norm > 0.0 else 1.0


@torch.no_grad()
def sum_of_squares(x: torch.Tensor) -> float:
    """The sum of a tensor's squares, the same bits on every processor.

    Squares of float32 are exact in float64; each piece is folded in halves, and the pieces' sums are added exactly.

    Cost: three passes over the tensor, and 8 `PIECE` bytes.
    """
    return math.fsum(_fold(piece.double().square()) for piece in x.reshape(-1).split(PIECE))


def _fold(terms: torch.Tensor) -> float:
    """Add the upper half of the terms to the lower half until one term is left; the terms are overwritten."""
    count = terms.numel()
    while count > 1:
        half = (count + 1) // 2
        terms[: count - half].add_(terms[half:count])
        count = half
    return float(terms[0]) if count else 0.0


def _direction(learned: LearnedTensor, gradient: torch.Tensor, update: int, settings: OptimizerConfig) -> torch.Tensor:
    """Add a gradient to the running means. Returns their quotient, corrected for the bias of their zero start."""
    beta1, beta2 = settings.betas
    learned.exp_avg.mul_(beta1).add_(gradient * (1.0 - beta1))
    learned.exp_avg_sq.mul_(beta2).add_((gradient * gradient).mul_(1.0 - beta2))
    spread = learned.exp_avg_sq.sqrt().mul_(1.0 / math.sqrt(1.0 - beta2**update)).add_(settings.eps)
    return (learned.exp_avg * (1.0 / (1.0 - beta1**update))).div_(spread)


def _decay(learned: LearnedTensor, settings: OptimizerConfig) -> float:
    return settings.weight_decay if learned.value.dim() >= 2 else 0.0
