"""The tensors that a layer hands on unread: found by running it for an example, with and without them."""

from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from pipelined.training.exchange.parcels import Elsewhere, Tree, positions_of, tensors_of
from pipelined.training.job.module_tensors import with_copied_buffers

HandedOn = Mapping[int, int]
"""{index among the inputs: index among the outputs}."""


def find_handed_on(layer: nn.Module, x: Tree, output: Tree) -> HandedOn:
    """What a layer hands on unread; nothing where it takes one tensor.

    Args:
        x: what it takes, each tensor an object of its own.
        output: what it gave for it.
    Cost: a forward for each tensor that the layer gives as it took it.
    """
    if isinstance(x, torch.Tensor):
        return {}
    outputs, inputs = list(map(id, tensors_of(output))), list(map(id, tensors_of(x)))
    given_once = {position: outputs.index(key) for position, key in enumerate(inputs) if outputs.count(key) == 1}
    return {position: index for position, index in given_once.items() if _runs_without(layer, x, position, index)}


def _runs_without(layer: nn.Module, x: Tree, position: int, index: int) -> bool:
    """Whether a layer gives, as output `index`, input `position`, though it does not have the tensor."""
    absent = tensors_of(x)[position]
    try:
        with with_copied_buffers(layer):
            output = layer(tree_map_only(torch.Tensor, lambda tensor: Elsewhere() if tensor is absent else tensor, x))
        return isinstance(positions_of(output)[index], Elsewhere)
    except Exception:
        return False


def handed_on_by_row(layers: Sequence[HandedOn]) -> HandedOn:
    """What a row of layers hands on unread."""
    return reduce(lambda first, second: {x: second[y] for x, y in first.items() if y in second}, layers)
