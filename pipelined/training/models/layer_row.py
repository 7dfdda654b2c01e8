"""Consecutive layers of a row as one module, such as a stage has them."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from pipelined.random.keyed_random import place_of_layer
from pipelined.random.torch_random import run_layer
from pipelined.training.exchange.parcels import Tree, tensors_of
from pipelined.training.graph.recompute import run_recomputed
from pipelined.training.job.module_tensors import register_tensor, replace_tensor
from pipelined.training.models.layer_builders import RECOMPUTED


class LayerRow(nn.Module):
    """Some consecutive layers, run one after the other.

    Each layer draws torch's random numbers under a key of its own, (seed, step, microbatch, "layer NAME"): the same
    dropout masks are drawn wherever the model is cut.

    Args:
        names: the names of the layers.
        row: the layers.
        aliases: the names of shared parameters; see `sequential.shared_names`.
        writes_input: they write into the tensors that they take, and so run on copies.
    """

    def __init__(
        self, names: Sequence[str], row: Sequence[nn.Module], aliases: Mapping[str, str], writes_input: bool = False
    ):
        super().__init__()
        self._writes_input = writes_input
        self._row = list(zip(names, row, strict=True))
        layers = dict(self._row)
        for alias, name in aliases.items():
            layer_name, _, path = alias.partition(".")
            if layer_name in layers and name.partition(".")[0] not in layers:
                shared = layers[layer_name].get_parameter(path)
                register_tensor(self, name, shared)  # before the layer, which has it under its alias
        for name, layer in self._row:
            self.add_module(name, layer)
        for alias, name in aliases.items():
            if alias.partition(".")[0] in layers:
                replace_tensor(self, self.get_parameter(alias), self.get_parameter(name))

    def forward(self, x: Tree) -> Tree:
        if self._writes_input:
            x = tree_map_only(torch.Tensor, torch.Tensor.clone, x)
        for name, layer in self._row:
            run = partial(run_recomputed, layer) if hasattr(layer, RECOMPUTED) else layer
            x = run_layer(partial(run, x), place_of_layer(name))
        return x


class WritesInPlace:
    """Which of a row's layers, or layers after them, write into what the layer takes, found while each is run once."""

    def __init__(self) -> None:
        self._inputs = list[list[tuple[torch.Tensor, int]]]()

    def note_input(self, x: Tree) -> None:
        """Note what the next layer is about to take."""
        self._inputs.append([(tensor, tensor._version) for tensor in tensors_of(x)])

    def by_layer(self) -> list[bool]:
        """Whether the value that each layer took was written into. Call it when all have run."""
        return [any(tensor._version != before for tensor, before in tensors) for tensors in self._inputs]


def says_in_place(layer: nn.Module) -> bool:
    """Whether a layer that was not run has a part which says that it writes in place, as torch's activations do."""
    return any(getattr(part, "inplace", False) is True for part in layer.modules())
