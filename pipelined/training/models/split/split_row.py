"""A row of layers whose tensors are split over the ranks of a worker: the `TeamModel` of `pipelined.Sequential`."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn

from pipelined.errors import UsageError
from pipelined.programs.partition import partition
from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import Shards
from pipelined.sharding.operators.verbs import Value, Verbs
from pipelined.sharding.shards import merge_dimensions, take
from pipelined.training.exchange.parcels import Tree, tensors_of
from pipelined.training.job.model import CountedLoss
from pipelined.training.job.module_tensors import has_hooks, register_tensor
from pipelined.training.models.sequential import LayeredModel
from pipelined.training.models.split.layer import BY_ROWS, ForwardPass, gather_output, team_mesh
from pipelined.training.models.split.search import AUTO, RowSearch
from pipelined.training.models.split.table import WHOLE, split_row


class _SameRow:
    """A row with the layers, costs and loss of another, `whole`."""

    whole: "LayeredModel | SplitRow"

    @property
    def layers(self) -> int:
        return self.whole.layers

    @property
    def tied(self) -> frozenset[str]:
        return self.whole.tied

    def costs(self, sequence: int) -> list[float]:
        return self.whole.costs(sequence)

    def loss(self, output: Tree, targets: Tree) -> Any:
        return self.whole.loss(output, targets)

    def identity(self) -> Mapping[str, Any]:
        return self.whole.identity()


class SplitRow(_SameRow):
    """A row of layers over T ranks; as a `UserModel` it is the whole.

    Args:
        whole: the row with its loss; both use what it has built.
        example: the inputs of a microbatch, by which a layout is searched.
        ranks: T.
        layout: `data`, `megatron` (None), or factors by layer; see `table.split_row`. `auto`: see `search.RowSearch`.
        rows: of a microbatch.
        microbatches, depth, dtype: of the plan and of its parameters, by which a layout is searched.
    Raises:
        UsageError: the layout is invalid, a layer cannot be split, there are fewer rows than their shards, or layers
            that share a parameter split it in two ways.
    """

    shards_weights = False
    whole: LayeredModel

    def __init__(
        self,
        whole: LayeredModel,
        example: Tree | None = None,
        *,
        ranks: int,
        layout: str | None,
        rows: int,
        microbatches: int = 1,
        depth: int = 1,
        dtype: torch.dtype = torch.float32,
    ):
        self.whole = whole
        self.ranks = ranks
        self.searched = layout == AUTO
        layers = whole.meta_layers
        if layout == AUTO:
            starts = [stage.start for stage in partition(self.costs(1), depth)][1:]
            layout = RowSearch(
                row=layers,
                aliases=whole.aliases,
                ranks=ranks,
                inputs=meta_inputs(example, rows, dtype),
                dtype=dtype,
                microbatches=microbatches,
                starts=starts,
            ).layout()
        self.split = split_row(layers, whole.aliases, ranks, layout)
        for layer in self.split:
            if layer.row_shards > rows:
                fact = f"more row shards than rows in a microbatch (layer {layer.name}, shards: {layer.row_shards}, "
                raise UsageError(f"{fact}rows: {rows}); use larger microbatches, or split columns")
        self.parameters()

    def build(self, layers: range, dtype: torch.dtype, device: torch.device | str, seed: int | None) -> nn.Module:
        return self.whole.build(layers, dtype, device, seed)

    def state_dict(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.whole.state_dict(tensors)

    def check_inputs(self, inputs: Any) -> None:
        self.whole.check_inputs(inputs)

    def release(self) -> None:
        self.whole.release()

    def describe(self) -> str:
        """How every layer with parameters is split, and which are kept whole, in a line."""
        split = [layer for layer in self.split if layer.parameters() and layer.split_text != WHOLE]
        words = [f"{layer.name} ({layer.kind}) {layer.split_text}" for layer in split]
        whole_layers = [f"{layer.name} ({layer.kind})" for layer in self.split if layer.split_text == WHOLE]
        kept = [f"kept whole, their rows split: {', '.join(whole_layers)}"] if whole_layers else []
        origin = f"{AUTO}, " if self.searched else ""
        return f"layout: {origin}{self.ranks} ranks a worker; {'; '.join([', '.join(words), *kept] if words else kept)}"

    def parameters(self) -> dict[str, Shards]:
        """How each parameter lies, by its first name.

        Raises:
            UsageError: layers that share a parameter split it in two ways.
        """
        return self._layouts

    @cached_property
    def _layouts(self) -> dict[str, Shards]:
        layouts: dict[str, Shards] = {}
        for layer in self.split:
            for layer_key, shards in layer.parameters().items():
                alias = f"{layer.name}.{layer_key}"
                name = self.whole.aliases.get(alias, alias)
                first = layouts.setdefault(name, shards)
                if (first.mesh, first.layout) != (shards.mesh, shards.layout):
                    fact = f"tied weights in two layouts ({name}: {first.layout}, {alias}: {shards.layout})"
                    raise UsageError(f"{fact}; split both layers alike")
        return layouts

    def member_model(self, member: int) -> "MemberRow":
        """The model of which `build` gives one rank's pieces."""
        return MemberRow(self, member)

    def input_shards(self, lead: tuple[int, ...]) -> Shards:
        """How inputs and targets lie: whole on all ranks; lead: their shape."""
        return Shards(team_mesh(self.ranks), lead, "")

    def stream_shards(self, lengths: tuple[int, ...]) -> Shards:
        """How a tensor lies between two stages: every rank has its own rows."""
        return Shards(team_mesh(self.ranks), lengths, BY_ROWS)

    async def run_layers(
        self,
        verbs: Verbs,
        layers: range,
        x: Value,
        pieces: Mapping[str, torch.Tensor],
        random: KeyedRandom | None = None,
    ) -> Value:
        """The output of a range of layers.

        Args:
            x: the inputs, as `input_shards`, or the output of the layer before the range.
            pieces: a rank's pieces of the range's parameters, and its buffers.
            random: of the microbatch; None in an evaluation.
        """
        forward_pass = ForwardPass(verbs, random)
        names = {name for name, _ in self.whole.meta_layers[layers.start : layers.stop]}
        for layer in self.split:
            if layer.name.partition(".")[0] in names:
                x = await layer.forward(forward_pass, x, self._pieces_of_layer(layer.name, pieces))
        return x

    async def score(self, verbs: Verbs, output: Value, targets: Value) -> Value:
        """The user's loss of a microbatch, of outputs that every member gathers.

        Raises:
            UsageError: the loss gives a count.
        """
        whole = await gather_output(verbs, output)

        def work(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            counted = CountedLoss.of(self.loss(output, targets))
            if counted.count is not None:
                raise UsageError("a team takes no loss with a count yet; return the mean, or use tensor 1")
            return counted.total.reshape(())

        return await verbs.compute("loss", work, whole, targets, result=Shards(whole.shards.mesh, (), ""))

    def _pieces_of_layer(self, layer: str, pieces: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What a layer holds, by its own names."""
        return {key: pieces[name] for key, name in self._names_by_layer[layer].items()}

    @cached_property
    def _names_by_layer(self) -> dict[str, dict[str, str]]:
        """By layer: the names of its tensors, local and in the model."""
        names = {}
        aliases = self.whole.aliases
        for layer in self.split:
            tensors = {**dict(layer.module.named_parameters()), **dict(layer.module.named_buffers())}
            full_names = {name: f"{layer.name}.{name}" for name in tensors}
            names[layer.name] = {name: aliases.get(full_name, full_name) for name, full_name in full_names.items()}
        return names


def meta_inputs(example: Tree | None, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """The inputs of a microbatch without values.

    Raises:
        UsageError: there is no example, or it is several tensors.
    """
    if len(tensors := tensors_of(example)) != 1:
        fact = f'layout "{AUTO}" is searched for one tensor of inputs (tensors: {len(tensors)})'
        raise UsageError(f"{fact}; give such an example, or factors by layer")
    kind = dtype if tensors[0].is_floating_point() else tensors[0].dtype
    return torch.empty(rows, *tensors[0].shape[1:], dtype=kind, device="meta")


class MemberRow(_SameRow):
    """One rank's pieces of a split row.

    Args:
        whole: the model.
        member: the rank's number in its team.
    """

    whole: SplitRow

    def __init__(self, whole: SplitRow, member: int):
        self.whole, self._member = whole, member

    def build(self, layers: range, dtype: torch.dtype, device: torch.device | str, seed: int | None) -> nn.Module:
        """Build these layers' pieces, and their buffers whole.

        Cost: one whole layer at a time, as its own code draws the initial values.
        """
        part = nn.Module()
        for layer in layers:
            self._add(part, self.whole.build(range(layer, layer + 1), dtype, device, seed))
        return part

    def _add(self, part: nn.Module, layer: nn.Module) -> None:
        """Copy this rank's pieces of a layer; those of tied parameters are there already."""
        layouts = self.whole.parameters()
        persistent_names = layer.state_dict(keep_vars=True)
        registered = {name for name, _ in (*part.named_parameters(), *part.named_buffers())}
        for name, parameter in layer.named_parameters():
            if name not in registered:
                self._refuse_hooks(name, parameter)
                shards = layouts[name]
                indices = merge_dimensions(shards.pieces(self._member), shards.lengths, parameter.shape)
                piece = take(parameter.detach(), indices)
                register_tensor(part, name, nn.Parameter(piece, parameter.requires_grad))
        for name, buffer in layer.named_buffers():
            if name not in registered:
                register_tensor(part, name, buffer, persistent=name in persistent_names)

    def _refuse_hooks(self, name: str, parameter: torch.Tensor) -> None:
        """Raises UsageError: the user's code has hooked the gradient of a parameter, and no member has all of it."""
        if has_hooks(parameter):
            fact = f"parameter {name} has a hook on its gradient, of which {self.whole.ranks} ranks have parts"
            raise UsageError(f"{fact}; leave the hook out, or use tensor 1")
