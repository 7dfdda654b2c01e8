"""The interface of a model: a sequence of layers, the cost of each, and a way to build a range of them.

State is keyed by parameter name, never by stage number. A name in two ranges (a tied embedding) is one parameter with
several holders, if the model declares it as tied.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from pipelined.errors import UsageError
from pipelined.training.exchange.parcels import Tree


class Part(Protocol):
    """A built range of layers: an `nn.Module`; its parameters and buffers have their global names.

    It may have frozen parameters, or no parameters. Torch's own dropout works; its masks do not depend on where the
    model is cut if the module runs its layers by `torch_random.run_layer`. Those of `keyed_random.dropout` never do.
    Persistent buffers are saved by their first holder and loaded by all. Running statistics of norms are equal on all
    holders after each step (`RunningStatistics`); other buffers that a forward writes need a stage with one holder.
    """

    def __call__(self, x: Tree) -> Tree:
        """Forward one microbatch: a tensor, or tuples, lists and dicts of them, as in torch.

        The first part takes the inputs of the feed; the last returns what the loss takes.
        """


class Model(Protocol):
    """A model that can be cut between any two layers; `pipelined.training.job.check_model` checks it.

    It may have an attribute `tied`: names that may be in several stages, each one parameter with several holders.
    """

    @property
    def layers(self) -> int:
        """The number of layers to distribute (GPT-2: its blocks, the embedding, and the head)."""

    def costs(self, sequence: int) -> list[float]:
        """Relative cost of a forward through each layer (floating-point operations per token)."""

    def build(self, layers: range, dtype: torch.dtype, device: torch.device | str, seed: int | None) -> nn.Module:
        """Build a `Part`. Initial values depend on (seed, parameter name) alone; seed None leaves them unset.

        Names: `{name: parameter}` of the module's `named_parameters()` are the global names. On the meta device the
            module has the same tensors as elsewhere, frozen and not.
        """

    def loss(self, output: Tree, targets: Tree) -> Any:
        """Loss of one microbatch: its mean, a scalar; or (sum, count), where the microbatches' counts differ."""

    def identity(self) -> Mapping[str, Any]:
        """The fields that must be equal for a checkpoint to fit this model."""


@runtime_checkable
class LanguageModel(Model, Protocol):
    """A model of token ids that knows the shapes between its layers in closed form.

    They are needed before anything is computed; a forward on the meta device would load torch's decompositions, which
    takes seconds at the start of every process.
    """

    def shape_of(self, layer: int, microbatch_size: int, sequence: int) -> tuple[int, ...]:
        """Shape of the input of this layer; beyond the last one, of the logits."""


@runtime_checkable
class HandsOn(Model, Protocol):
    """A model that knows which tensors its layers hand on unread: these go straight to the stage that reads them."""

    def handed_on(self, layers: range, dtype: torch.dtype) -> Mapping[int, int]:
        """What these layers hand on unread in training, the same on all ranks.

        Returns: {index among the inputs: index among the outputs}.
        """


@dataclass(frozen=True)
class CountedLoss:
    """The loss of one microbatch: a mean, or a sum with its count.

    The loss of a step is the sum of what its microbatches give over the sum of their counts, where a mean counts 1. So
    it is that of the whole batch, also where microbatches have unequal numbers of tokens.

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
            UsageError: it is something else; a count is not a number from 0 up.
        """
        pair = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        total = pair[0]
        count = None if pair[1] is None else _count(pair[1])
        if not isinstance(total, torch.Tensor) or total.numel() != 1:
            given = f"shape {tuple(total.shape)}" if isinstance(total, torch.Tensor) else type(total).__name__
            raise UsageError(f"the loss gives no scalar ({given}); let it return the mean, or the sum and the count")
        return cls(total, count)


def _count(value: Any) -> float:
    with suppress(TypeError, ValueError, RuntimeError):
        if 0 <= (count := float(value)) < math.inf:
            return count
    fact = f"the count that the loss returned must be a number from 0 up (count: {str(value)[:100]})"
    raise UsageError(f"{fact}; let it return the sum, and a finite count")
