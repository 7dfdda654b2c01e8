"""The callables that build the layers of a row, and the layers among them that share parameters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from pipelined.random.keyed_random import seed_of
from pipelined.training.job.check_model import ModelError
from pipelined.training.job.module_tensors import replace_tensor

RECOMPUTED = "pipelined_recomputed"
"""The attribute of a layer that runs again in the backward."""
LayerBuilder = Callable[[], nn.Module]


@dataclass(frozen=True)
class TiedBuilder:
    """A callable that builds a layer which shares parameters with others; see `tied`."""

    name: str
    build: LayerBuilder

    def __call__(self) -> nn.Module:
        return self.build()


def tied(name: str, layer: LayerBuilder) -> TiedBuilder:
    """Let layers of a row share the parameters that have the same name in each of them.

    `pp.tied("embedding", lambda: nn.Embedding(V, C))` and, later in the row,
    `pp.tied("embedding", lambda: nn.Linear(C, V, bias=False))` have one `weight`, (V, C): that of the first of them.

    Args:
        name: the same for all layers that share.
        layer: a callable that builds the layer.
    """
    return TiedBuilder(name, layer)


L = TypeVar("L", nn.Module, LayerBuilder)


def recomputed(layer: L) -> L:
    """Let a layer of a row keep only its inputs, and run again in the backward, as by `torch.utils.checkpoint`.

    Its random numbers are the same again, and its buffers are written by the first run alone. The gradients have the
    bits of a layer that keeps everything. A team (`tensor` above 1) ignores the mark.

    Args:
        layer: a callable that builds it, or a module, as a child of an `nn.Sequential`.
    """
    if isinstance(layer, nn.Module):
        setattr(layer, RECOMPUTED, True)
        return layer
    if isinstance(layer, TiedBuilder):
        return TiedBuilder(layer.name, recomputed(layer.build))
    return partial(_build_recomputed, layer)


def _build_recomputed(build: LayerBuilder) -> nn.Module:
    return recomputed(build())


def initial_seed(seed: int, layer: str) -> int:
    """The seed of torch's generators while a layer is built, in a row with `initial="keyed"`.

    Args:
        seed: the seed of the run.
        layer: the layer's name, the first part of the names of its tensors.
    """
    return seed_of(seed, "initial", layer)


def check_builder(index: int, builder: object) -> LayerBuilder:
    """The builder of a layer.

    Raises:
        ModelError: it is not a callable.
    """
    if isinstance(builder, TiedBuilder):
        return TiedBuilder(builder.name, check_builder(index, builder.build))
    if isinstance(builder, nn.Module):
        fact = f"layer {index} is a {type(builder).__name__} that is built already"
        raise ModelError(f"{fact}; give a callable that builds it (lambda: ...), or one nn.Sequential of all layers")
    if not callable(builder):
        fact = f"layer {index} is a {type(builder).__name__}, not a callable that builds a layer"
        raise ModelError(f"{fact}; give lambda: torch.nn.Linear(64, 64), or a class such as torch.nn.ReLU")
    return builder


def build_layer(index: int, builder: LayerBuilder) -> nn.Module:
    """Build one layer.

    Raises:
        ModelError: the callable fails, or builds something else than a layer.
    """
    try:
        layer = builder()
    except Exception as error:
        raise ModelError(f"layer {index} cannot be built ({type(error).__name__}: {error})") from error
    if not isinstance(layer, nn.Module):
        fact = f"layer {index} was built as a {type(layer).__name__}"
        raise ModelError(f"{fact}; let its callable return an nn.Module")
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        if is_lazy(tensor):
            raise ModelError(f"{name} of layer {index} has no shape before it has run; give sizes, as nn.Linear(8, 8)")
    return layer


def build_on_meta(index: int, builder: LayerBuilder) -> nn.Module:
    """Build one layer without memory.

    Raises:
        ModelError: as `build_layer`, or the layer's code needs values.
    """
    try:
        with torch.device("meta"):
            return build_layer(index, builder)
    except ModelError as error:
        fact = f"{error} on the meta device, where other ranks' layers are built"
        raise ModelError(f'{fact}; leave out initial="keyed" if it can be built on the CPU') from error


def tied_groups(builders: Sequence[LayerBuilder]) -> list[list[int]]:
    """The numbers of the layers that share parameters, by their common name.

    Raises:
        ModelError: a name that only one layer has.
    """
    groups: dict[str, list[int]] = {}
    for index, builder in enumerate(builders):
        if isinstance(builder, TiedBuilder):
            groups.setdefault(builder.name, []).append(index)
    for name, numbers in groups.items():
        if len(numbers) == 1:
            fact = f"layer {numbers[0]} alone is tied as {name!r}"
            raise ModelError(f"{fact}; tie another layer under the same name, or leave pp.tied out")
    return list(groups.values())


def share_parameters(groups: Sequence[Sequence[int]], built: Mapping[int, nn.Module]) -> None:
    """Put the parameters of the first layer of each group into the other layers, where their names are the same.

    Raises:
        ModelError: two layers of a group have no name in common, or other shapes under it.
    """
    for first, *sharing in groups:
        for later in sharing:
            if first in built and later in built:
                _share(first, built[first], later, built[later])


def _share(first: int, source: nn.Module, later: int, layer: nn.Module) -> None:
    originals, copies = dict(source.named_parameters()), dict(layer.named_parameters())
    common = [name for name in copies if name in originals]
    if not common:
        fact = f"layers {first} and {later} are tied and have no parameter of the same name"
        raise ModelError(f"{fact} (layer {first}: {', '.join(originals)}; layer {later}: {', '.join(copies)})")
    for name in common:
        if originals[name].shape != copies[name].shape:
            shapes = f"layer {first}: {tuple(originals[name].shape)}, layer {later}: {tuple(copies[name].shape)}"
            raise ModelError(f"{name} is tied between layers {first} and {later} and has other shapes ({shapes})")
        replace_tensor(layer, copies[name], originals[name])
