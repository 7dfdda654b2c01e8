"""The tensors that a layer hands on unread: found by running it for an example, with and without them."""

from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from pipelined.training.exchange.stream import Elsewhere, Tree, places_of, tensors_of
from pipelined.training.stage import with_copied_buffers

HandedOn = Mapping[int, int]
"""{index among the inputs: index among the outputs}."""


def handed_on(layer: nn.Module, x: Tree, output: Tree) -> HandedOn:
    """What a layer hands on unread; nothing where it takes one tensor.

    Args:
        x: what it takes, each tensor an object of its own.
        output: what it gave for it.
    Cost: a forward for each tensor that the layer gives as it took it.
    """
    if isinstance(x, torch.Tensor):
        return {}
    given = tensors_of(output)
    found = {place: [to for to, each in enumerate(given) if each is one] for place, one in enumerate(tensors_of(x))}
    single = {place: to[0] for place, to in found.items() if len(to) == 1}
    return {place: to for place, to in single.items() if _runs_without(layer, x, place, to)}


def _runs_without(layer: nn.Module, x: Tree, place: int, to: int) -> bool:
    """Whether a layer gives a tensor at one place that it took at another, though it does not have the tensor."""
    absent = tensors_of(x)[place]
    try:
        with with_copied_buffers(layer):
            output = layer(tree_map_only(torch.Tensor, lambda one: Elsewhere() if one is absent else one, x))
        return isinstance(places_of(output)[to], Elsewhere)
    except Exception:
        return False


def along(layers: Sequence[HandedOn]) -> HandedOn:
    """What a row of layers hands on unread."""
    return reduce(lambda before, after: {at: after[to] for at, to in before.items() if to in after}, layers)
