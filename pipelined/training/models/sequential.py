"""A model as a row of layers: any torch layers, built by their own code, cut between any two of them.

A layer takes what the layer before it gives, as in `torch.nn.Sequential`: a tensor, or tuples, lists and dicts of
tensors. Parameters have the names that the same `torch.nn.Sequential` gives them (`0.weight`, ...). Every rank builds
all layers in order under one seed and keeps its own, so the initial values are those of one process, whatever the
arrangement.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pipelined.errors import UsageError
from pipelined.random.torch_random import seeded_alone
from pipelined.training.exchange.parcels import Tree, tensors_of
from pipelined.training.job.check_model import ModelError, require_kind
from pipelined.training.job.module_tensors import copy_module
from pipelined.training.models.batch import convert_floats, rows_of
from pipelined.training.models.handed_on import HandedOn, handed_on_by_row
from pipelined.training.models.layer_builders import (
    LayerBuilder,
    build_layer,
    build_on_meta,
    check_builder,
    initial_seed,
    share_parameters,
    tied_groups,
)
from pipelined.training.models.layer_row import LayerRow, says_in_place
from pipelined.training.models.layer_runs import (
    chain_layers,
    count_operations,
    dtype_of_row,
    in_dtype,
    on_meta,
    run_layer_alone,
    sample_kind,
)

Loss = Callable[[Any, Any], Any]
"""The loss of one microbatch from (output, targets): its mean, a scalar; or (sum, count)."""
ORDERED, KEYED = "ordered", "keyed"
Builders = Mapping[str, LayerBuilder] | Iterable[LayerBuilder]
"""What builds the layers of a row, in order; by their names, or numbered."""


class Sequential:
    """A row of layers, as a user describes it.

    Args:
        layers: an `nn.Sequential`, which is cut between its children as they are; or a list of callables without
            arguments, each of which builds one layer (a layer's class is such a callable, so is `tied`'s result); or
            such callables by the layers' names.
        initial: how the callables draw initial values. "ordered": as in one process, where all are called in order
            under the run's seed; so every rank calls all. "keyed": each layer under a key of its own, `initial_seed`;
            a rank calls those of its own layers, and the others without memory.
    Raises:
        UsageError: `layers` is a single thing, such as the first of several arguments.
    """

    def __init__(self, layers: "nn.Sequential | Builders", initial: str = ORDERED):
        if not isinstance(layers, Iterable):
            need = "the layers must be an nn.Sequential, or a list of callables that build layers"
            raise UsageError(f"{need} (got: {type(layers).__name__})")
        self.initial = initial
        named = layers if isinstance(layers, Mapping) else None
        self._layers = layers if isinstance(layers, nn.Sequential) else list(named.values() if named else layers)
        if isinstance(self._layers, nn.Sequential):
            self._names = list(self._layers._modules)  # its children, and again those that it has twice
        elif named:
            self._names = list(named)
        else:
            self._names = [str(layer) for layer in range(len(self._layers))]

    def __len__(self) -> int:
        return len(self._names)

    @property
    def names(self) -> list[str]:
        """The name of each layer, the first part of its tensors' names."""
        return list(self._names)

    def build(self, seed: int, wanted: Sequence[int] | None = None) -> list[nn.Module]:
        """Layers with the initial values that their own code draws; the generator is restored afterwards.

        Those of a given `nn.Sequential` are copied with the values that they have.

        Args:
            wanted: the numbers of the layers; None: all.
        Raises:
            ModelError: there are no layers; an entry is no callable, fails, or builds something else than a layer.
        """
        wanted = range(len(self)) if wanted is None else wanted
        self._check()
        if isinstance(self._layers, nn.Sequential):
            copied = list(copy_module(self._layers))
            return [copied[layer] for layer in wanted]
        builders = self._builders()
        groups = tied_groups(builders)
        built = dict[int, nn.Module]()
        firsts = [group[0] for group in groups if any(layer in wanted for layer in group)]
        with seeded_alone(seed):
            for layer in sorted({*wanted, *firsts}) if self.initial == KEYED else range(len(self)):
                if self.initial == KEYED:
                    torch.manual_seed(initial_seed(seed, self._names[layer]))
                built[layer] = build_layer(layer, builders[layer])
        share_parameters(groups, built)
        return [built[layer] for layer in wanted]

    def build_on_meta(self) -> list[nn.Module]:
        """Every layer without values and without memory.

        Raises:
            ModelError: as `build`; or the code of a layer needs values.
        """
        self._check()
        builders = self._builders()
        built = {layer: build_on_meta(layer, builder) for layer, builder in enumerate(builders)}
        share_parameters(tied_groups(builders), built)
        return list(built.values())

    def _check(self) -> None:
        if not self._names:
            raise ModelError("a model without layers; give pp.Sequential at least one layer for each stage")
        for name in self._names:
            if not name or "." in name or hasattr(LayerRow, name) or name in vars(LayerRow([], [], {})):
                raise ModelError(f"{name!r} cannot name a layer, nor a child of an nn.Module; give it another name")
        if self.initial not in (ORDERED, KEYED):
            raise ModelError(f"initial is {self.initial!r}; choose {ORDERED!r} or {KEYED!r}")
        if isinstance(self._layers, nn.Sequential) and self.initial == KEYED:
            raise ModelError('an nn.Sequential has its values already; leave initial="keyed" out, or give callables')

    def _builders(self) -> list[LayerBuilder]:
        return [check_builder(layer, builder) for layer, builder in enumerate(self._layers)]


class LayeredModel:
    """A `Sequential` with its loss, in the form that the trainer takes (`pipelined.training.job.model.Model`).

    Args:
        loss: the mean loss of one microbatch, or (sum, count).
        seed: the seed under which the layers are built.
        example: the inputs of one microbatch, to count operations and to check that the layers chain; None: layers are
            weighed by their parameters alone.

    Attributes:
        aliases: further names of parameters that layers share, with the first of each.
    """

    def __init__(self, row: Sequential, loss: Loss, seed: int, example: Tree | None = None):
        self._layers, self._loss, self._seed = row, loss, seed
        self._first_build = None if row.initial == KEYED else row.build(seed)
        built = row.build_on_meta() if self._first_build is None else self._first_build
        self.aliases = shared_names(row.names, built)
        self._meta = [copy.deepcopy(layer).to("meta") for layer in built]
        self._dtype = dtype_of_row(built)
        self._handed_on = list[HandedOn]()
        self._accepted_kinds = set[str]()
        self._writes_input = [says_in_place(layer) for layer in self._meta]
        self._example_dtypes = [tensor.dtype for tensor in tensors_of(example)]
        self._costs = self._weigh_layers(example)

    @property
    def layers(self) -> int:
        return len(self._layers)

    @property
    def meta_layers(self) -> list[tuple[str, nn.Module]]:
        """The layers without values, on the meta device, by name."""
        return list(zip(self._layers.names, self._meta, strict=True))

    @property
    def tied(self) -> frozenset[str]:
        """The names of parameters that several layers share."""
        return frozenset(self.aliases.values())

    def costs(self, sequence: int) -> list[float]:
        """The weight of each layer when stages are cut: its operations for one sample, plus its parameters."""
        return self._costs

    def handed_on(self, layers: range, dtype: torch.dtype) -> HandedOn:
        """What these layers hand on unread; without an example nothing is known, and nothing goes past a stage."""
        return handed_on_by_row([self._handed_on[layer] for layer in layers]) if self._handed_on else {}

    def build(self, layers: range, dtype: torch.dtype, device: torch.device | str, seed: int | None) -> nn.Module:
        """These layers as one module. The seed is the model's own: `seed` None only means that values are loaded."""
        if torch.device(device).type == "meta":
            row = [copy.deepcopy(self._meta[layer]) for layer in layers]
        elif self._first_build is None:
            row = self._layers.build(self._seed, layers)
        else:
            row = [copy_module(self._first_build[layer]) for layer in layers]
        names = [self._layers.names[layer] for layer in layers]
        return LayerRow(names, row, self.aliases, self._writes_input[layers.start]).to(dtype).to(device)

    def state_dict(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The state as the same `nn.Sequential` names it, which repeats shared parameters under each of their names."""
        names = [f"{name}.{key}" for name, layer in self.meta_layers for key in layer.state_dict()]
        return {name: tensors[self.aliases.get(name, name)] for name in names}

    def check_inputs(self, inputs: Any) -> None:
        """Refuse inputs of another kind of dtype than the example's, and those that a layer rejects.

        A layer runs on the meta device, once for each shape of a sample and dtype; without an example whose forward
        needed no values it decides when it computes.
        """
        for dtype, tensor in zip(self._example_dtypes, tensors_of(inputs), strict=False):
            require_kind(tensor.dtype, dtype, "with an example of")
        inputs = convert_floats(inputs, self._dtype)
        kind = sample_kind(inputs)
        if self._accepted_kinds and kind not in self._accepted_kinds:
            with torch.no_grad(), seeded_alone(self._seed):
                for name, layer, previous in chain_layers(self._layers.names, self._meta):
                    inputs = run_layer_alone(name, layer, on_meta(inputs), previous)
            self._accepted_kinds.add(kind)

    def release(self) -> None:
        """Free the layers of other ranks, once this rank's own are built."""
        self._first_build = None

    def _weigh_layers(self, example: Tree | None) -> list[float]:
        """The weight of each layer. Counted on the meta device, or by computing where a layer needs values."""
        names = self._layers.names
        sizes = [1.0 + sum(parameter.numel() for parameter in layer.parameters()) for layer in self._meta]
        if example is None:
            return sizes
        rows = rows_of(example, "the example")
        example = convert_floats(example, self._dtype)
        try:
            operations, self._handed_on, self._writes_input = count_operations(self._meta, names, on_meta(example))
            self._accepted_kinds.add(sample_kind(example))
        except ModelError:
            if self._first_build is None:
                raise
            row = [in_dtype(layer, self._dtype) for layer in self._first_build]
            operations, self._handed_on, self._writes_input = count_operations(row, names, example)
        return [size + count / rows for size, count in zip(sizes, operations, strict=True)]

    def loss(self, output: Tree, targets: Tree) -> Any:
        return self._loss(output, targets)

    def identity(self) -> Mapping[str, Any]:
        return {"layers": [repr(layer) for layer in self._meta]}


def shared_names(names: Sequence[str], row: Sequence[nn.Module]) -> dict[str, str]:
    """The parameters that several layers share: each further name, and the first name of the same parameter."""
    name_of: dict[int, str] = {}
    aliases = {}
    for name, layer in zip(names, row, strict=True):
        for path, parameter in layer.named_parameters(remove_duplicate=True):
            first_name = name_of.setdefault(id(parameter), f"{name}.{path}")
            if first_name.partition(".")[0] != name:
                aliases[f"{name}.{path}"] = first_name
    return aliases
