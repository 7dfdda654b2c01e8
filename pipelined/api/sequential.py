"""A model as a row of layers: any torch layers, built by their own code, cut between any two of them.

A layer takes what the layer before it gives, as in `torch.nn.Sequential`: a tensor, or tuples, lists and dicts of
tensors. The tensors have the names that the same
`torch.nn.Sequential` gives them (`0.weight`, ...). Every rank builds all layers in order under one seed and keeps its
own, so the initial values are those of one process, whatever the arrangement.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pipelined.errors import UsageError
from pipelined.training.check_model import ModelError
from pipelined.training.keyed_random import place_of_layer
from pipelined.training.parameters import register_tensor, replace_tensor
from pipelined.training.stage import with_copied_buffers
from pipelined.training.stream import Tree, describe_tree, tensors_of
from pipelined.training.torch_random import run_layer

Loss = Callable[[Any, Any], Any]
"""The loss of one microbatch from (output, targets): its mean, a scalar; or (sum, count)."""
LayerBuilder = Callable[[], nn.Module]


class Sequential:
    """A row of layers, as a user describes it.

    Args:
        layers: an `nn.Sequential`, which is cut between its children as they are; or a list of callables without
            arguments, each of which builds one layer (a layer's class is such a callable).
    """

    def __init__(self, layers: "nn.Sequential | Sequence[LayerBuilder]"):
        self._given = layers
        if isinstance(layers, nn.Sequential):
            self._names = list(layers._modules)  # its children, and again those that it has twice
        else:
            self._names = [str(number) for number in range(len(layers))]

    def __len__(self) -> int:
        return len(self._names)

    @property
    def names(self) -> list[str]:
        """The name of each layer, the first part of its tensors' names."""
        return list(self._names)

    def build(self, seed: int) -> list[nn.Module]:
        """Every layer, with the initial values that its own code draws.

        The layers are built in order, after `torch.manual_seed(seed)`; the generator is restored afterwards. Those of a
        given `nn.Sequential` are copied with the values that they have.

        Raises:
            ModelError: there are no layers; an entry is no callable, fails, or builds something else than a layer.
        """
        if not self._names:
            raise ModelError("a model without layers; give pp.Sequential at least one layer for each stage")
        if isinstance(self._given, nn.Sequential):
            return list(copy.deepcopy(self._given))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return [_built(number, _checked(number, builder)) for number, builder in enumerate(self._given)]


class LayeredModel:
    """A `Sequential` with its loss, in the form that the trainer takes (`pipelined.training.model.Model`).

    Args:
        loss: the mean loss of one microbatch.
        seed: the seed under which the layers are built.
        example: the inputs of one microbatch, to count operations and to check that the layers chain; None: layers are
            weighed by their parameters alone.
    """

    def __init__(self, row: Sequential, loss: Loss, seed: int, example: torch.Tensor | None = None):
        self._row, self._loss, self._seed = row, loss, seed
        self._first_build: list[nn.Module] | None = row.build(seed)
        self._aliases = shared_names(row.names, self._first_build)
        self._meta = [copy.deepcopy(layer).to("meta") for layer in self._first_build]
        self._costs = self._measured(example)

    @property
    def layers(self) -> int:
        return len(self._row)

    @property
    def tied(self) -> frozenset[str]:
        """The names of parameters that several layers share."""
        return frozenset(self._aliases.values())

    def costs(self, sequence: int) -> list[float]:
        """The weight of each layer when stages are cut: its operations for one row, plus its parameters."""
        return self._costs

    def build(self, layers: range, dtype: torch.dtype, device: torch.device | str, seed: int | None) -> nn.Module:
        """These layers as one module. The seed is the model's own: `seed` None only means that values are loaded."""
        if torch.device(device).type == "meta":
            row = [copy.deepcopy(self._meta[number]) for number in layers]
        else:
            every = self._first_build or self._row.build(self._seed)
            row = [copy.deepcopy(every[number]) for number in layers]
        return LayerRow([self._row.names[number] for number in layers], row, self._aliases).to(dtype).to(device)

    def state_dict(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The state as the same `nn.Sequential` names it, which repeats shared parameters under each of their names."""
        names = [
            f"{name}.{key}"
            for name, layer in zip(self._row.names, self._meta, strict=True)
            for key in layer.state_dict()
        ]
        return {name: tensors[self._aliases.get(name, name)] for name in names}

    def release(self) -> None:
        """Free the layers of other ranks, once this rank's own are built."""
        self._first_build = None

    def _measured(self, example: torch.Tensor | None) -> list[float]:
        """The weight of each layer. Counted on the meta device, or by computing where a layer needs values."""
        row, names = self._first_build, self._row.names
        assert row is not None
        sizes = [1.0 + sum(parameter.numel() for parameter in layer.parameters()) for layer in row]
        if example is None:
            return sizes
        if example.is_floating_point():
            example = example.to(torch.get_default_dtype())
        try:
            operations = _operations(self._meta, names, example.to("meta"))
        except ModelError:
            operations = _operations(row, names, example)
        return [size + count / len(example) for size, count in zip(sizes, operations, strict=True)]

    def loss(self, output: Tree, targets: Tree) -> Any:
        return self._loss(output, targets)

    def identity(self) -> Mapping[str, Any]:
        return {"layers": [repr(layer) for layer in self._meta]}


class LayerRow(nn.Module):
    """Some consecutive layers, run one after the other.

    Each layer draws torch's random numbers under a key of its own, (seed, step, microbatch, "layer NAME"): the same
    dropout masks are drawn wherever the model is cut.

    Args:
        names: the names of the layers.
        row: the layers.
        aliases: the names of shared parameters; see `shared_names`.
    """

    def __init__(self, names: Sequence[str], row: Sequence[nn.Module], aliases: Mapping[str, str]):
        super().__init__()
        self._row = list(zip(names, row, strict=True))
        layers = nn.ModuleDict(dict(self._row))
        for alias, name in aliases.items():
            if alias.partition(".")[0] in layers and name.partition(".")[0] not in layers:
                register_tensor(
                    self, name, layers.get_parameter(alias)
                )  # before the layer, which has it under its alias
        for name, layer in self._row:
            self.add_module(name, layer)
        for alias, name in aliases.items():
            if alias.partition(".")[0] in layers:
                replace_tensor(self, self.get_parameter(alias), self.get_parameter(name))

    def forward(self, x: Tree) -> Tree:
        for name, layer in self._row:
            x = run_layer(partial(layer, x), place_of_layer(name))
        return x


def shared_names(names: Sequence[str], row: Sequence[nn.Module]) -> dict[str, str]:
    """The parameters that several layers share: each further name, and the first name of the same parameter."""
    first: dict[int, str] = {}
    aliases = {}
    for name, layer in zip(names, row, strict=True):
        for path, parameter in layer.named_parameters(remove_duplicate=True):
            own = first.setdefault(id(parameter), f"{name}.{path}")
            if own.partition(".")[0] != name:
                aliases[f"{name}.{path}"] = own
    return aliases


def _checked(number: int, builder: object) -> LayerBuilder:
    if isinstance(builder, nn.Module):
        fact = f"layer {number} is a {type(builder).__name__} that is built already"
        raise ModelError(f"{fact}; give a callable that builds it (lambda: ...), or one nn.Sequential of all layers")
    if not callable(builder):
        fact = f"layer {number} is a {type(builder).__name__}, not a callable that builds a layer"
        raise ModelError(f"{fact}; give lambda: torch.nn.Linear(64, 64), or a class such as torch.nn.ReLU")
    return builder


def _built(number: int, builder: LayerBuilder) -> nn.Module:
    try:
        layer = builder()
    except Exception as error:
        raise ModelError(f"layer {number} cannot be built ({type(error).__name__}: {error})") from error
    if not isinstance(layer, nn.Module):
        fact = f"layer {number} was built as a {type(layer).__name__}"
        raise ModelError(f"{fact}; let its callable return an nn.Module")
    return layer


def _operations(row: Sequence[nn.Module], names: Sequence[str], x: Tree) -> list[float]:
    """The floating-point operations of each layer's forward, from the inputs x on.

    Raises:
        ModelError: a layer cannot take what the layer before it gives.
    """
    counts = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for before, name, layer in zip(("", *names), names, row, strict=False):
            x, operations = _counted(name, layer, x, before)
            counts.append(operations)
    return counts


def _counted(name: str, layer: nn.Module, x: Tree, before: str) -> tuple[Tree, float]:
    """The output of one layer, and the operations of its forward. Its buffers stay as they are."""
    try:
        with FlopCounterMode(display=False) as counter, with_copied_buffers(layer):
            output = layer(x)
    except Exception as error:
        source = f"what layer {before} gives" if before else "the inputs"
        given = ", ".join(f"shape {tuple(one.shape)}, {one.dtype}" for one in tensors_of(x))
        fact = f"layer {name} ({layer}) cannot take {source} ({given})"
        raise ModelError(f"{fact}: {error}") from error
    try:
        describe_tree(output)
    except UsageError as error:
        raise ModelError(f"layer {name} ({layer}) gives {error}") from error
    return output, float(counter.get_total_flops())
