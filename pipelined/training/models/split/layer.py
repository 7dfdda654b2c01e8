"""A layer of a row as the ranks of a team run it: its parameters' layouts, and its coroutine over `compute` and `move`.

Between two layers a tensor is split over all ranks, on the mesh of the layer that gave it, or whole on all of them.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from pipelined.random.keyed_random import KeyedRandom, place_of_layer
from pipelined.sharding import Mesh, Shards
from pipelined.sharding.operators.verbs import Value, Verbs
from pipelined.training.job.check_model import ModelError

Pieces = Mapping[str, torch.Tensor]
"""A rank's pieces of a layer's parameters and its buffers, by the names that the layer gives them."""
BY_ROWS = "S0:ranks"
"""Each rank of a team has its own rows."""


def team_mesh(ranks: int) -> Mesh:
    """The mesh of layers without factors."""
    return Mesh(f"ranks={ranks}")


@dataclass
class ForwardPass:
    """One forward of a microbatch through the row.

    Args:
        verbs: compute and move, for the layers.
        random: of the microbatch; None in an evaluation.
    """

    verbs: Verbs
    random: KeyedRandom | None
    _generators: dict[str, torch.Generator] = field(default_factory=dict)

    def generator(self, layer: str, device: torch.device) -> torch.Generator | None:
        """The generator of a layer of the row, seeded as a plain loop seeds torch's; its layers draw one by one.

        None on the meta device, where nothing is drawn.
        """
        if device.type == "meta":
            return None
        assert self.random is not None, "an evaluation draws nothing"
        if layer not in self._generators:
            seed = self.random.key(place_of_layer(layer))
            self._generators[layer] = torch.Generator(device).manual_seed(seed)
        return self._generators[layer]


@dataclass(frozen=True)
class SplitPart:
    """What some factors split: a layer, or a half of a Transformer's.

    Args:
        input_shards: how it takes its input, from how that comes.
        forward: takes the input as these shards.
        prefixes: the beginnings of the names of its parameters.
    """

    input_shards: Callable[[Shards], Shards]
    forward: Callable[[ForwardPass, Value, Pieces], Coroutine[Any, Any, Value]]
    prefixes: tuple[str, ...] = ("",)


class SplitLayer(ABC):
    """One layer.

    Args:
        name: its place in the row, such as "3", or "3.0" in an `nn.Sequential` of the row.
        module: the layer on the meta device, for its settings and shapes.
        ranks: of the team.

    Attributes:
        split_text: how it is split, in a word.
        row_shards: the parts into which it cuts the rows.
    """

    split_text = "as it comes"
    row_shards = 1

    def __init__(self, name: str, module: nn.Module, ranks: int):
        self.name, self.module, self.ranks = name, module, ranks
        self._output_shapes: dict[tuple[int, ...], tuple[int, ...]] = {}

    @cached_property
    def _evaluated(self) -> nn.Module:
        return copy.deepcopy(self.module).eval()

    @property
    def kind(self) -> str:
        return type(self.module).__name__

    def parameters(self) -> dict[str, Shards]:
        """How each parameter lies, by the layer's own name of it; whole on all ranks, unless the layer says else."""
        parameters = dict(self.module.named_parameters())
        return {name: Shards(team_mesh(self.ranks), parameter.shape, "") for name, parameter in parameters.items()}

    @abstractmethod
    async def forward(self, forward_pass: ForwardPass, x: Value, pieces: Pieces) -> Value:
        """The layer's output, split over all ranks or whole on all of them."""

    def parts(self) -> list[SplitPart]:
        """What has factors in it, in order; an input that is whole on all ranks is taken as it comes."""
        return []

    def output_shape(self, x: Value) -> tuple[int, ...]:
        """The shape of the whole output.

        Raises:
            ModelError: the layer cannot compute on the meta device, gives something else than a tensor, or mixes rows.
        """
        shape = x.shards.lengths
        if shape not in self._output_shapes:
            with torch.no_grad():
                self._output_shapes[shape] = self._compute_shape(torch.empty(shape, dtype=x.array.dtype, device="meta"))
        return self._output_shapes[shape]

    def _compute_shape(self, x: torch.Tensor) -> tuple[int, ...]:
        where = f"layer {self.name} ({self.kind})"
        try:
            output = self._evaluated(x)
        except Exception as error:
            fact = f"{where} cannot be split, as it computes no shape without values ({error})"
            raise ModelError(f"{fact}; use tensor 1") from error
        if not isinstance(output, torch.Tensor) or output.shape[:1] != x.shape[:1]:
            result = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
            fact = f"{where} takes {tuple(x.shape)} and gives {result}"
            raise ModelError(f"{fact}; a team splits layers that give one tensor with as many rows, so use tensor 1")
        return tuple(output.shape)


async def split_by_rows(verbs: Verbs, x: Value) -> Value:
    """The same value, with rows of its own on each rank."""
    return await verbs.move(x, Shards(team_mesh(x.shards.mesh.size), x.shards.lengths, BY_ROWS))


async def gather_output(verbs: Verbs, output: Value) -> Value:
    """The last layer's output, whole on all ranks, which compute the same loss of it."""
    if output.shards.is_uniform:  # its gradient is a sum over ranks; that of what is gathered next is not
        output = await split_by_rows(verbs, output)
    mesh = output.shards.mesh
    return await verbs.move(output, Shards(mesh, output.shards.lengths, ""), replicated=tuple(mesh.sizes))
