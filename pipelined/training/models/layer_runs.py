"""The run of each layer of a row alone, one after the other, for an example."""

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from pipelined.errors import UsageError
from pipelined.training.exchange.parcels import Tree, describe_tree, tensors_of
from pipelined.training.job.check_model import ModelError
from pipelined.training.job.module_tensors import with_copied_buffers
from pipelined.training.models.handed_on import HandedOn, find_handed_on
from pipelined.training.models.layer_row import WritesInPlace


def count_operations(
    row: Sequence[nn.Module], names: Sequence[str], x: Tree
) -> tuple[list[float], list[HandedOn], list[bool]]:
    """The operations of each layer's forward, what it hands on unread, and whether it `WritesInPlace`.

    Raises:
        ModelError: a layer rejects the output of the previous layer.
    """
    counts, handed_on = [], list[HandedOn]()
    writes = WritesInPlace()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for name, layer, previous in chain_layers(names, row):
            layer_input = tree_map_only(torch.Tensor, torch.Tensor.detach, x)  # each an object of its own
            writes.note_input(layer_input)
            with FlopCounterMode(display=False) as counter:
                x = run_layer_alone(name, layer, layer_input, previous)
            counts.append(float(counter.get_total_flops()))
            handed_on.append(find_handed_on(layer, layer_input, x))
    return counts, handed_on, writes.by_layer()


def dtype_of_row(row: Sequence[nn.Module]) -> torch.dtype:
    """The dtype of the floating-point parameters of all layers; torch's default where they have none, or several."""
    dtypes = {p.dtype for layer in row for p in layer.parameters() if p.is_floating_point()}
    return dtypes.pop() if len(dtypes) == 1 else torch.get_default_dtype()


def in_dtype(layer: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The layer, or a copy in this dtype if one of its floating-point parameters has another."""
    is_in_dtype = all(p.dtype == dtype for p in layer.parameters() if p.is_floating_point())
    return layer if is_in_dtype else copy.deepcopy(layer).to(dtype)


def on_meta(x: Tree) -> Tree:
    """The tensors of a tree without values, on the meta device."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), x)


def sample_kind(inputs: Tree) -> str:
    """The dtype and the shape of one sample of each tensor."""
    return str(tree_map_only(torch.Tensor, lambda tensor: (tensor.dtype, tensor.shape[1:]), inputs))


def chain_layers(names: Sequence[str], row: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module, str]]:
    """The name of each layer, the layer, and the name of the one before it."""
    return zip(names, row, ("", *names), strict=False)


def run_layer_alone(name: str, layer: nn.Module, x: Tree, previous: str) -> Tree:
    """The output of one layer. Its buffers stay as they are. Raises: as `count_operations`."""
    try:
        with with_copied_buffers(layer):
            output = layer(x)
    except Exception as error:
        source = f"the output of layer {previous}" if previous else "the inputs"
        shapes = ", ".join(f"shape {tuple(tensor.shape)}, {tensor.dtype}" for tensor in tensors_of(x))
        fact = f"layer {name} ({layer}) rejected {source} ({shapes})"
        raise ModelError(f"{fact}: {error}") from error
    try:
        describe_tree(output)
    except UsageError as error:
        raise ModelError(f"layer {name} ({layer}) gives {error}") from error
    return output
