"""One stage of the model on one rank: its layers, its live microbatches, and their forwards and backwards.

The results of a stage depend only on its input, its parameters and the key of its random numbers. So they are the same
in any schedule, and the same when activations are recomputed, also with torch's own dropout. The first forward of each
microbatch notes what it would write to buffers (`RunningStatistics`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from pipelined.errors import UsageError
from pipelined.random.keyed_random import KeyedRandom
from pipelined.random.torch_random import TorchRandom
from pipelined.training.exchange.parcels import (
    Arrived,
    Parcel,
    Tree,
    open_gradients,
    open_tree,
    pack_gradients,
    pack_tree,
    positions_of,
    tensors_of,
)
from pipelined.training.graph.compiled import CompiledModule
from pipelined.training.graph.read_buffers import ReadBuffers
from pipelined.training.graph.recompute import selecting_attention
from pipelined.training.graph.split_backward import WeightHalf, backward_input
from pipelined.training.job.model import CountedLoss, Model
from pipelined.training.job.rank_context import MicrobatchKey
from pipelined.training.stages.key_values import KeyValueCache
from pipelined.training.stages.running_statistics import RunningStatistics
from pipelined.training.stages.written_parameters import run_without_writes
from pipelined.training.sums.accumulation import Accumulation


@dataclass
class Stage:
    """A range of layers with the activations it keeps between forward and backward.

    Args:
        model: computes the loss.
        module: the built layers.
        index: the number of the stage, 0 … depth-1.
        depth: D.
        device: the device of its tensors.
        autocast: the dtype of matrix products in the forward; parameters and sums keep theirs. None: theirs.
        recompute: keep only input and output of a microbatch, and run the forward again before its backward.
        input_only: with `recompute`: keep no output either.
        recompute_attention: keep only the inputs of each attention's core, and run it again in the backward.
        compile: let torch's compiler translate the forward and its backward, at the first microbatch.
        replicas: the ranks that hold the stage.
        accumulation: of the gradients of its parameters.
        weights: gives what a forward takes instead of its parameters; None: it takes these.
    Raises:
        UsageError: the accumulation cannot serve the stage.
    """

    model: Model
    module: nn.Module
    index: int
    depth: int
    device: torch.device
    autocast: torch.dtype | None = None
    recompute: bool = False
    input_only: bool = False
    recompute_attention: bool = False
    compile: bool = False
    replicas: int = 1
    accumulation: Accumulation = field(default_factory=Accumulation)
    weights: Callable[[], Mapping[str, torch.Tensor]] | None = None
    alive: dict[MicrobatchKey, tuple[Tree, Tree]] = field(default_factory=dict)
    pending: dict[MicrobatchKey, WeightHalf] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = TorchRandom(self.device)
        self._read_buffers = ReadBuffers[MicrobatchKey]({})
        self.statistics = RunningStatistics(self.module, self.index, self.replicas)
        self.accumulation.require(self.index, self.statistics.has_buffers)
        if self.compile and self.statistics.has_buffers:
            raise UsageError(f"stage {self.index} has buffers that a forward may write; leave compile out")

    @cached_property
    def _compiled(self) -> CompiledModule | None:
        """The module compiled, as it is at the first microbatch: by then it takes versions of weights, if any."""
        return CompiledModule(self.module, self.index) if self.compile else None

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.depth - 1

    def forward(self, key: MicrobatchKey, x: Arrived, random: KeyedRandom, targets: Tree = None) -> Parcel:
        """Forward one microbatch and keep the tensors that its backward needs.

        Shapes: x (B, T) token ids on the first stage, else (B, T, C); targets (B, T), on the last stage alone.
        Returns: what is sent to the next stage, or on the last stage the loss, and its count if it is a sum: detached,
            on the host.
        Raises:
            UsageError: the stage gives something else than tensors, alone or in tuples, lists and dicts; the loss is
                no scalar.
        """
        x = open_tree(x, self.device, gradients=not self.is_first)
        with torch.set_grad_enabled(not self.recompute):
            output = self._apply(x, random, targets, noted=key)
        self.alive[key] = (x, () if self.input_only else output.total if isinstance(output, CountedLoss) else output)
        if isinstance(output, CountedLoss):
            return Parcel((output.total.detach().cpu(), output.count))
        return self._pack_output(output, recompute=self.recompute)

    def backward(
        self, key: MicrobatchKey, gradient: Arrived | None, scale: float, random: KeyedRandom, targets: Tree = None
    ) -> Parcel | None:
        """Backward one microbatch: accumulate the gradients of parameters, return those of the input.

        Args:
            gradient: the gradients of this stage's output; None on the last stage.
            scale: factor of the loss (one over the step's microbatches), used on the last stage, also for a sum.
        Returns: the input's gradients as they are sent to the stage before, or None on the first stage.
        """
        x, output = self._revive(key, random, targets)
        if seeds := self._seeds(output, gradient, scale):
            with self._compiled.compiling() if self._compiled else nullcontext():
                backward_root(seeds).backward()
        self.accumulation.collect(self.index)
        return None if self.is_first else pack_gradients(x, [leaf.grad for leaf in _leaves(x)])

    def backward_input(
        self, key: MicrobatchKey, gradient: Arrived | None, scale: float, random: KeyedRandom, targets: Tree = None
    ) -> Parcel | None:
        """The half of `backward` that returns the input's gradients; the weight half stays pending.

        Cost: nothing on the first stage: no rank waits for a gradient there, so the weight half does all the work.
        """
        x, output = self._revive(key, random, targets)
        inputs = _leaves(x)
        self.pending[key] = WeightHalf()
        input_gradients: list[torch.Tensor | None] = [None] * len(inputs)
        if seeds := self._seeds(output, gradient, scale):
            outputs, gradients = zip(*seeds, strict=True)
            with self.accumulation.without_weights():
                input_gradients, self.pending[key] = backward_input(outputs, gradients, inputs)
        return None if self.is_first else pack_gradients(x, input_gradients)

    def backward_weight(self, key: MicrobatchKey) -> None:
        """The half of `backward` that accumulates the gradients of parameters."""
        self.pending.pop(key).run()
        self.accumulation.collect(self.index)

    @torch.no_grad()
    def evaluate(self, x: Arrived, past: KeyValueCache | None = None) -> Tree:
        """Forward without random numbers or graph: (B, T) or (B, T, C) in, (B, T, C) or logits (B, T, V) out.

        Nothing is kept for a backward. During the call its modules are in evaluation mode (`nn.Module.eval`).

        Args:
            past: of the tokens before, to which these are added; None: these begin the sequence.
        """
        with evaluating(self.module), self._precision():
            x = open_tree(x, self.device)
            return past.run(self.module, x) if past else self.module(x)

    def _revive(self, key: MicrobatchKey, random: KeyedRandom, targets: Tree) -> tuple[Tree, Tree]:
        """The kept input of a microbatch, and its output with a graph (recomputed if necessary), for one backward."""
        x, output = self.alive.pop(key)
        if self.recompute:
            with self._read_buffers.reading(key, self.module):
                output = self._apply(x, random, targets)
        output = output.total if isinstance(output, CountedLoss) else output
        self.accumulation.begin_backward(tensors_of(output))
        return x, output

    def _seeds(self, output: Tree, gradient: Arrived | None, scale: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The tensors at which a backward begins, each with its gradient."""
        if gradient is not None:
            return open_gradients(gradient, positions_of(output), self.device)
        if not output.requires_grad:
            fact = "the loss does not depend on the model's outputs in a way that has a gradient"
            raise UsageError(f"{fact}; compute it from them without detach, item, argmax or torch.no_grad")
        return [(output, torch.full_like(output, scale))]

    def _apply(
        self, x: Tree, random: KeyedRandom, targets: Tree, noted: MicrobatchKey | None = None
    ) -> "Tree | CountedLoss":
        """Run the module and the loss.

        Args:
            noted: the microbatch, in its first forward: it notes what that would write to buffers, and what it read.
        """
        forward = partial(self._compiled or self.module, x)
        if noted is not None and (self.replicas > 1 or self.recompute):
            facts = f"ranks with this stage: {self.replicas}, recomputed: {'yes' if self.recompute else 'no'}"
            where = f"stage {self.index} ({facts}), so forwards would differ"
            weights = self.weights() if self.weights else dict(self.module.named_parameters())
            forward = partial(run_without_writes, weights, forward, where)
        if noted is not None and self.recompute:
            forward = partial(self._read_buffers.run_noting, noted, self.module, forward)
        if noted is not None:
            forward = partial(self.statistics.run_noting, forward, random.step, random.microbatch)
        with selecting_attention(self.recompute_attention), self._precision():
            output = self._random.run(forward, random, f"stage {self.index}")
        if self._compiled and self._random.draws:
            fact = f"stage {self.index} draws torch's random numbers, which a compiler draws otherwise"
            raise UsageError(f"{fact}; use dropout of pipelined.random.keyed_random, or leave compile out")
        if not self.is_last:
            return output
        assert targets is not None  # the worker gives them to the last stage
        return CountedLoss.of(self.model.loss(output, open_tree(targets, self.device)))

    def _pack_output(self, output: Tree, recompute: bool) -> Parcel:
        try:
            return pack_tree(output, recompute)
        except UsageError as error:
            raise UsageError(f"stage {self.index} of {self.depth} gives {error}") from error

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, self.autocast) if self.autocast else nullcontext()


class _Seeded(torch.autograd.Function):
    """A scalar 0 whose backward gives each of some tensors the gradient that was stated for it."""

    @staticmethod
    def forward(ctx: Any, gradients: tuple[torch.Tensor, ...], *outputs: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, *ctx.gradients


def backward_root(seeds: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """A scalar whose backward equals, bit for bit, that of these (tensor, gradient) pairs.

    One scalar tensor is multiplied by its gradient instead.

    Torch's own `backward` of several tensors imports torch's symbolic shapes, which costs half the time of importing
    torch; that of a scalar does not.
    """
    outputs, gradients = zip(*seeds, strict=True)
    if len(outputs) == 1 and not outputs[0].dim():
        return outputs[0] * gradients[0]
    return _Seeded.apply(gradients, *outputs)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the `with` block; afterwards every module returns to its previous mode."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _leaves(x: Tree) -> list[torch.Tensor]:
    """The tensors of an input that need a gradient."""
    return [tensor for tensor in tensors_of(x) if tensor.requires_grad]
