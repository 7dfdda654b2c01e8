"""One stage of the model on one rank: its layers, its live microbatches, and their forwards and backwards.

The results of a stage depend only on its input, its parameters and the key of its random numbers. So they are the same
in any schedule, and the same when activations are recomputed, also with torch's own dropout. Only the first forward of
each microbatch writes buffers (the running statistics of a batch norm).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from pipelined.errors import UsageError
from pipelined.training.keyed_random import KeyedRandom
from pipelined.training.model import Model
from pipelined.training.split_backward import WeightHalf, backward_input
from pipelined.training.torch_random import TorchRandom
from transports import Message

Alive = tuple[int, int]
"""(pipe, microbatch): the name of a live microbatch inside one stage of one worker."""
Arrived = torch.Tensor | Message
"""An input: a message from another stage, or a tensor of this rank."""


@dataclass
class Stage:
    """A range of layers with the activations it keeps between forward and backward.

    Args:
        model: computes the loss.
        module: the built layers.
        index: the number of the stage, 0 … depth-1.
        depth: D.
        device: the device of its tensors.
        autocast: matrix products of the forward in bfloat16; parameters and sums keep their dtype.
        recompute: keep only the input of a microbatch and run the forward again before its backward.
    """

    model: Model
    module: nn.Module
    index: int
    depth: int
    device: torch.device
    autocast: bool = False
    recompute: bool = False
    alive: dict[Alive, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    pending: dict[Alive, WeightHalf] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = TorchRandom(self.device)

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.depth - 1

    def forward(
        self, which: Alive, x: Arrived, random: KeyedRandom, targets: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Forward one microbatch and keep the tensors that its backward needs.

        Shapes: x (B, T) token ids on the first stage, else (B, T, C); targets (B, T), on the last stage alone.
        Returns: the activation for the next stage, or on the last stage the mean loss: detached, on the host.
        """
        x = self._here(x)
        if not self.first:
            x.requires_grad_()
        with torch.set_grad_enabled(not self.recompute):
            output = self._apply(x, random, targets)
        self.alive[which] = (x, output)
        return output.detach().cpu()

    def backward(
        self,
        which: Alive,
        gradient: Arrived | None,
        scale: float,
        random: KeyedRandom,
        targets: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Backward one microbatch: accumulate the gradients of parameters, return the gradient of the input.

        Args:
            gradient: the gradient of this stage's output; None on the last stage.
            scale: factor of the loss (one over the step's microbatches), used on the last stage.
        Returns: the input's gradient, on the host, or None on the first stage.
        """
        x, output = self._revived(which, random, targets)
        if output.requires_grad:
            torch.autograd.backward(output, self._seed(output, gradient, scale))
        return None if self.first else _or_zeros(x.grad, x)

    def backward_input(
        self,
        which: Alive,
        gradient: Arrived | None,
        scale: float,
        random: KeyedRandom,
        targets: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """The half of `backward` that returns the input's gradient; the weight half stays pending.

        Cost: nothing on the first stage: no rank waits for a gradient there, so the weight half does all the work.
        """
        x, output = self._revived(which, random, targets)
        back, self.pending[which] = None, WeightHalf()
        if output.requires_grad:
            seed = self._seed(output, gradient, scale)
            back, self.pending[which] = backward_input(output, seed, None if self.first else x)
        return None if self.first else _or_zeros(back, x)

    def backward_weight(self, which: Alive) -> None:
        """The half of `backward` that accumulates the gradients of parameters."""
        self.pending.pop(which).run()

    @torch.no_grad()
    def evaluate(self, x: Arrived) -> torch.Tensor:
        """Forward without random numbers or graph: (B, T) or (B, T, C) in, (B, T, C) or logits (B, T, V) out.

        Nothing is kept for a backward. During the call its modules are in evaluation mode (`nn.Module.eval`).
        """
        with evaluating(self.module), self._precision():
            return self.module(self._here(x), None)

    def _revived(
        self, which: Alive, random: KeyedRandom, targets: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The kept input of a microbatch, and its output with a graph (recomputed if necessary), for one backward."""
        x, output = self.alive.pop(which)
        if self.recompute:
            with with_copied_buffers(self.module):
                output = self._apply(x, random, targets)
        return x, output

    def _seed(self, output: torch.Tensor, gradient: Arrived | None, scale: float) -> torch.Tensor:
        return torch.full_like(output, scale) if gradient is None else self._here(gradient)

    def _apply(self, x: torch.Tensor, random: KeyedRandom, targets: torch.Tensor | None) -> torch.Tensor:
        with self._precision():
            if getattr(self.module, "seeds_layers", False):
                output = self.module(x, random)
            else:
                output = self._random.run(partial(self.module, x, random), random, f"stage {self.index}")
        if not isinstance(output, torch.Tensor):
            fact = f"stage {self.index} of {self.depth} gives a {type(output).__name__}, not one tensor"
            raise UsageError(f"{fact}; stack what it gives into one tensor, or cut the model elsewhere")
        if not self.last:
            return output
        assert targets is not None  # the worker gives them to the last stage
        return self.model.loss(output, self._here(targets))

    def _here(self, arrived: Arrived) -> torch.Tensor:
        """The input as a tensor on this stage's device."""
        tensor = arrived.blocks[0].torch() if isinstance(arrived, Message) else arrived
        return tensor.to(self.device)

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.autocast else nullcontext()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the `with` block; afterwards every module returns to its previous mode."""
    training = [one for one in module.modules() if one.training]
    module.eval()
    try:
        yield
    finally:
        for one in training:
            one.training = True


@contextmanager
def with_copied_buffers(module: nn.Module) -> Iterator[None]:
    """Inside the `with` block writes to buffers go to copies, which are discarded at its end."""
    owners = [(one, leaf, buffer) for one in module.modules() for leaf, buffer in one.named_buffers(recurse=False)]
    try:
        for one, leaf, buffer in owners:
            setattr(one, leaf, buffer.clone())
        yield
    finally:
        for one, leaf, buffer in owners:
            setattr(one, leaf, buffer)


def _or_zeros(gradient: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """The gradient of x, on the host; zeros if the output does not depend on x."""
    return torch.zeros_like(x, device="cpu") if gradient is None else gradient.cpu()
