"""The optimizer of the parameters that a rank holds: AdamW with a cosine rate, or any other optimizer of torch.

Learning rate and clipping are the same on all ranks of the job.

Every holder of a parameter makes the same update from the same bits, so replicas stay equal without comparing them. The
global norm is summed parameter by parameter in the order of their names, in every arrangement.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from pipelined.errors import UsageError, ran_out_of_memory


class UpdateFailed(Exception):
    """An error inside an optimizer's update; the message names the optimizer."""


class FusedAdamW(torch.optim.AdamW):
    """torch's AdamW without torch's wrapper around `step`, which imports torch's compiler; nothing here uses that.

    A training process thereby starts earlier, by about the time that importing torch itself takes.
    """

    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


DECAYS: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    "wsd": lambda done: min(1.0, 5.0 * (1.0 - done)),
    "constant": lambda done: 1.0,
}
"""How high the rate is above its floor, from 1 to 0, when a share (0 … 1) of the steps after the warm-up is done.

wsd: warm-up, stable, decay; the last fifth of these steps decays (Hu et al., MiniCPM, 2024, section 4).
"""


@dataclass(frozen=True)
class OptimizerConfig:
    """The settings of the optimizer.

    Args:
        lr: the highest learning rate.
        warmup: steps in which the rate rises linearly to `lr`.
        steps: the step at which the rate has fallen to `floor` times `lr`.
        clip: largest global gradient norm; 0 disables clipping.
        weight_decay: weight decay of matrices; vectors (biases, norms) do not decay.
        decay: how the rate falls after the warm-up, a name in `DECAYS`.
    """

    lr: float
    steps: int
    warmup: int = 0
    floor: float = 0.1
    clip: float = 1.0
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    decay: str = "cosine"

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        progress = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        return self.lr * (self.floor + (1.0 - self.floor) * DECAYS[self.decay](progress))

    def build(self, parameters: Mapping[str, nn.Parameter]) -> torch.optim.AdamW:
        """AdamW in two groups, with and without decay, in the order of names; frozen parameters are in neither.

        It is fused: the kernel passes over a parameter's values, gradient and moments once (2.0 ms; the other
        implementations took 6.4 ms). The result for a value depends only on its position in its parameter, not on
        threads or other parameters.
        """
        names = sorted(name for name, parameter in parameters.items() if parameter.requires_grad)
        matrices = [parameters[n] for n in names if parameters[n].dim() >= 2]
        vectors = [parameters[n] for n in names if parameters[n].dim() < 2]
        groups = [{"params": matrices, "weight_decay": self.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        groups = [group for group in groups if group["params"]] or groups[:1]  # torch refuses an empty list of groups
        return FusedAdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=True)


WHOLE_PARAMETER_OPTIMIZERS = (torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.Muon)
"""The optimizers of torch whose update of an element depends on other elements of its parameter."""


def require_elementwise(optimizer: Optimizer) -> None:
    """Refuse an optimizer that would update a part of a parameter otherwise than the whole.

    Raises:
        UsageError: it is one of torch's that do; those of others are not known.
    """
    if isinstance(optimizer, WHOLE_PARAMETER_OPTIMIZERS):
        fact = f"{type(optimizer).__name__} updates a parameter as a whole, and here a rank updates a part of it"
        raise UsageError(f"{fact}; take one that updates element by element, as AdamW and SGD do")


def clip_factor(clip: float, norm: float) -> float:
    """The factor for all gradients at this global norm, as in torch's clip_grad_norm_."""
    return min(1.0, clip / (norm + 1e-6)) if clip else 1.0


def update(optimizer: Optimizer, rate: float | None, gradient_scale: float) -> None:
    """One update at this rate (None: at the optimizer's own), with gradients multiplied in place.

    Raises:
        UpdateFailed: the optimizer raises. An error of memory, or that the user can correct, stays what it is.
    """
    for group in optimizer.param_groups:
        if rate is not None:
            group["lr"] = rate
        gradients = [p.grad for p in group["params"] if p.grad is not None]
        if gradient_scale != 1.0 and gradients:
            torch._foreach_mul_(gradients, gradient_scale)
    try:
        optimizer.step()
    except Exception as error:
        if isinstance(error, UsageError) or ran_out_of_memory(error):
            raise
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        fact = f"the update of {count} parameters by {type(optimizer).__name__}"
        raise UpdateFailed(f"{fact} failed: {error!r}") from error
