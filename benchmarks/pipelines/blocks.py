"""Some GPT-2 blocks over all ranks, as this project splits them: the work, and what each result must be.

A step is a forward, a backward from a given gradient, and the sums of the gradients of parameters. Each rank also
computes the plain blocks once; every contender's output and gradients are compared with theirs.

Shapes: B sequences, T tokens of a sequence, C width.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isnan
from typing import Protocol

import torch
from torch import nn

from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.sharded.gpt2 import ShardedGPT2
from apps.common.lm.sharded.layouts import Factors
from pipelined.actors.device.executor import ComputeQueue
from pipelined.random.keyed_random import keyed_generator
from pipelined.sharding import MeshGroups
from pipelined.sharding.operators.tape import Tape, sum_gradients
from pipelined.sharding.operators.verbs import Value

HEAD = 64
"""Numbers of a head."""
Pair = tuple[str, torch.Tensor, torch.Tensor]
"""A result's name, the result on this rank, and what it must be."""


@dataclass(frozen=True)
class Work:
    """What every contender does, in float32, without dropout.

    Args:
        width: C.
        sequence: T.
        batch: B.
        layers: blocks.
    """

    width: int
    sequence: int
    batch: int = 4
    layers: int = 4
    seed: int = 0

    @property
    def config(self) -> ModelConfig:
        return ModelConfig(self.layers, self.width, max(1, self.width // HEAD), 64, self.sequence, dropout=0.0)

    @property
    def blocks(self) -> range:
        """The blocks among the model's layers."""
        return range(1, self.layers + 1)

    def plain(self) -> nn.Module:
        """The blocks with their initial values, whole."""
        return GPT2(self.config).build(self.blocks, torch.float32, "cpu", self.seed)

    def stream(self, name: str) -> torch.Tensor:
        """Normal numbers (B, T, C): the input, or the gradient of the output."""
        generator = keyed_generator(self.seed, name)
        return torch.randn((self.batch, self.sequence, self.width), generator=generator)


@dataclass(frozen=True)
class Whole:
    """What the plain blocks give.

    Args:
        output, back: the output, and the gradient of the input, (B, T, C).
        gradients: of the parameters, by name.
    """

    output: torch.Tensor
    back: torch.Tensor
    gradients: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, work: Work) -> "Whole":
        part, x = work.plain(), work.stream("input").requires_grad_()
        output = part(x)
        output.backward(work.stream("gradient"))
        gradients = {name: each.grad for name, each in part.named_parameters() if each.grad is not None}
        assert x.grad is not None
        return cls(output.detach(), x.grad, gradients)


class Contender(Protocol):
    """One way to do the work."""

    async def step(self) -> None:
        """Do it once."""

    def results(self, whole: Whole) -> Iterator[Pair]:
        """What the last step left on this rank; all ranks call this together."""


class SplitBlocks:
    """The blocks as a team trains them: a tape over collectives, each computation on an executor.

    Args:
        network: of all ranks.
        factors: of the multiplications.
    """

    def __init__(self, work: Work, network: MeshGroups, queue: ComputeQueue, factors: Mapping[str, Factors]):
        self._work, self._network, self._queue = work, network, queue
        self._model, rank = ShardedGPT2(work.config, factors), network.rank
        layouts, parameters = self._model.parameters(), dict(work.plain().named_parameters())
        self._layouts = {name: layouts[name] for name in parameters}
        self._pieces = {
            name: self._model.local(name, whole.detach(), rank).clone().requires_grad_()
            for name, whole in parameters.items()
        }
        self._shards = self._model.stream((work.batch, work.sequence))
        self._x, self._gradient = (self._shards.local(work.stream(name), rank) for name in ("input", "gradient"))

    async def step(self) -> None:
        for piece in self._pieces.values():
            piece.grad = None
        self._input, tape = Value(self._x, self._shards), Tape(self._network, self._queue)
        self._output = await tape.run(self._model.run_layers(tape, self._work.blocks, self._input, self._pieces))
        await tape.run(tape.backward(self._output, self._gradient))
        await sum_gradients(self._network, [(piece, self._layouts[name]) for name, piece in self._pieces.items()])

    def results(self, whole: Whole) -> Iterator[Pair]:
        rank, back = self._network.rank, self._input.gradient
        assert back is not None
        yield "output", self._output.array, self._shards.local(whole.output, rank)
        yield "input's gradient", back, self._shards.local(whole.back, rank)
        for name, piece in self._pieces.items():
            assert piece.grad is not None
            yield name, piece.grad, self._model.local(name, whole.gradients[name], rank)


def apart(pairs: Iterable[Pair]) -> tuple[float, str]:
    """The largest difference of a result from what it must be, beside that one's largest element; and its name."""
    return max((_apart(result, due), name) for name, result, due in pairs)


def _apart(result: torch.Tensor, due: torch.Tensor) -> float:
    """0 for a piece without elements, infinite where a number is NaN."""
    if not due.numel():
        return 0.0
    found = float((result - due).abs().max() / due.abs().max())
    return inf if isnan(found) else found
