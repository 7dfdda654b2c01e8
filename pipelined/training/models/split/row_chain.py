"""A row of layers that a team is to split: the ways to split each part that has factors, with what they cost.

An option of a part costs the moves inside it, the bytes it keeps for the backward, and the sums of its gradients once a
step. An `Outline` reads the moves from the code that trains, and a record of that code counts the bytes kept. All
prices are those of the last rank, which has the larger of uneven pieces.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import product
from math import inf
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from collectives import Links
from pipelined.errors import UsageError
from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import Shards
from pipelined.sharding.factors import Factors
from pipelined.sharding.operators.outline import Outline
from pipelined.sharding.operators.stage_record import count_kept_bytes, piece
from pipelined.sharding.operators.tape import sum_path
from pipelined.sharding.operators.verbs import Value, Verbs
from pipelined.sharding.search.matmul import factorizations
from pipelined.sharding.search.problem import Numbers
from pipelined.training.models.split.layer import BY_ROWS, ForwardPass, SplitLayer, team_mesh
from pipelined.training.models.split.row_choices import MOVED, FactorsByName, PartCosts, PartOption
from pipelined.training.models.split.table import leaves, operators, split_layer

LayerForward = Callable[[ForwardPass, Value], Coroutine[Any, Any, Value]]
"""The forward of a layer without factors, with its parameters bound."""


class PricedValue(NamedTuple):
    """A value, and what the moves on the way to it cost.

    Args:
        costs: [cost], the first `MOVED` of `PartCosts`.
    """

    value: Value
    costs: Numbers


@dataclass(frozen=True, kw_only=True)
class RowChain:
    """A row that a team is to split.

    Args:
        row: the layers on the meta device, by name.
        aliases: further names of parameters that layers share, with the first of each.
        ranks: T.
        inputs: of a microbatch, on the meta device; they begin with its rows.
        dtype: of parameters and moves.
        starts: the indices in the row at which stages begin; there each rank has its own rows.
        links: the prices of messages.
        node: ranks of a node; 0: all are on one.
        counts_kept: whether the bytes kept for the backward are counted, which takes longer.
    """

    row: Sequence[tuple[str, nn.Module]]
    aliases: Mapping[str, str]
    ranks: int
    inputs: torch.Tensor
    dtype: torch.dtype = torch.float32
    starts: Sequence[int] = ()
    links: Links = field(default_factory=Links)
    node: int = 0
    counts_kept: bool = False

    @property
    def rank(self) -> int:
        """The rank that is priced."""
        return self.ranks - 1

    def leaf_layers(self) -> list[tuple[str, nn.Module]]:
        """The layers by name, with those inside a container in its place."""
        return [leaf for name, module in self.row for leaf in leaves(name, module)]

    def factors_of_shared_weights(self) -> Iterator[dict[str, Factors]]:
        """Every way to split the weights that several operators share: these operators have equal factors."""
        operators_by_weight = dict[str, list[str]]()
        for name, module in self.leaf_layers():
            for operator, weight in operators(name, module).items():
                operators_by_weight.setdefault(self.first_name(weight), []).append(operator)
        sharing = [names for names in operators_by_weight.values() if len(names) > 1]
        for factors_of_weights in self.factor_combinations(len(sharing)):
            pairs = zip(sharing, factors_of_weights, strict=True)
            yield {operator: factors for names, factors in pairs for operator in names}

    def factor_combinations(self, operator_count: int) -> Iterator[tuple[Factors, ...]]:
        """Every combination of factors of this many operators, with at most a rank to a row."""
        rows = self.inputs.shape[0]
        return product([f for f in factorizations(self.ranks) if f.rows <= rows], repeat=operator_count)

    def first_name(self, parameter: str) -> str:
        """The first of a parameter's names in the row."""
        return self.aliases.get(parameter, parameter)

    def first_names(self, name: str, module: nn.Module) -> set[str]:
        """The first name of each parameter of a layer."""
        return {self.first_name(f"{name}.{parameter}") for parameter, _ in module.named_parameters()}

    def options(
        self, part: "LayerPart", value: Value, streams: Sequence[Value], counted: Set[str]
    ) -> Iterator[PartOption]:
        """The ways to split a part.

        Args:
            value: the part's input before it is moved to where the part takes it; it may lie in any way.
            streams: the inputs of a layer's first part, to which its second adds the result; empty for a first part.
            counted: first names of the parameters whose sums an earlier layer counts.
        """
        every_operator = list(operators(part.name, part.module))
        by_rows = dict.fromkeys(every_operator, Factors(self.ranks, 1, 1))
        for stream_factors in self._stream_factors(every_operator[0], streams):
            for factors in self.factor_combinations(len(part.operators)):
                own_factors = dict(zip(part.operators, factors, strict=True))
                every_factor = {**by_rows, **stream_factors, **own_factors}
                try:
                    layer = split_layer(part.name, part.module, self.ranks, every_factor)
                except UsageError:
                    continue  # ranks are left without heads or channels
                yield self._priced_option(layer, part.number, own_factors, value, counted)

    def _stream_factors(self, first_operator: str, streams: Sequence[Value]) -> list[FactorsByName]:
        """For each cut of the streams into rows, the first operator's factors with which the layer has that cut."""
        if not streams:
            return [{}]
        row_cuts = sorted({stream.shards.mesh.sizes["rows"] for stream in streams})
        return [{first_operator: Factors(cut, 1, self.ranks // cut)} for cut in row_cuts]

    def _priced_option(
        self, layer: SplitLayer, part_number: int, own_factors: FactorsByName, value: Value, counted: Set[str]
    ) -> PartOption:
        part = layer.parts()[part_number]
        shards = part.input_shards(value.shards)
        part_input = Value(piece(self.rank, shards, value.array.dtype, trained=False), shards, value.trained)
        pieces = self.pieces(layer)
        # the part before keeps its result; the first stage keeps its input where that is not moved
        is_stage_input = value.array is self.inputs and _held_by_all(shards) == _held_by_all(value.shards)
        kept_elsewhere = [part_input.array] if value.trained or is_stage_input else []
        output, moved = self._price(lambda verbs: part.forward(_pass_of(verbs), part_input, pieces), kept_elsewhere)
        forward, backward, kept = moved.tolist()
        names = [parameter for parameter in layer.parameters() if parameter.startswith(part.prefixes)]
        update, numbers = self.update_costs(layer, names, counted)
        return PartOption(own_factors, part_input, output, PartCosts(forward, backward, kept, update, numbers))

    def update_costs(self, layer: SplitLayer, names: Sequence[str], counted: Set[str]) -> tuple[float, int]:
        """The seconds of the sums of a layer's gradients, and its numbers, of the trained parameters of these names."""
        trained = {name for name, parameter in layer.module.named_parameters() if parameter.requires_grad}
        seconds = 0.0
        numbers = 0
        shards = layer.parameters()
        for name in names:
            if name in trained and self.first_name(f"{layer.name}.{name}") not in counted:
                seconds += sum_path(shards[name]).seconds(self.links, self.dtype.itemsize, self.node)
                numbers += shards[name].size(self.rank)
        return seconds, numbers

    def after_layers(self, value: Value, layers: Sequence[LayerForward]) -> PricedValue:
        """The output of some layers without factors, and the costs of their moves."""

        async def forward(verbs: Verbs) -> Value:
            output = value
            for layer in layers:
                output = await layer(_pass_of(verbs), output)
            return output

        return self._price(forward, self._kept_elsewhere(value))

    def stage_input(self, value: Value) -> PartOption:
        """The only option where a stage begins: each rank has its own rows of the value, which is not trained there."""
        shards = Shards(team_mesh(self.ranks), value.shards.lengths, BY_ROWS)
        own_rows = Value(piece(self.rank, shards, value.array.dtype, trained=False), shards)
        return PartOption({}, own_rows, own_rows)

    def costs_between(
        self, outputs: Sequence[PricedValue], options: Sequence[PartOption], *, in_place: bool
    ) -> Numbers:
        """The costs on the way from each output to each option's input.

        Shape: [output, option, cost], the first `MOVED` of `PartCosts`.

        Args:
            in_place: whether an output must lie already as the option takes it; else the way costs infinity.
        """
        costs = np.zeros((len(outputs), len(options), MOVED))
        costs_of_move = dict[Any, Numbers]()  # by what the ranks hold before and after
        for i, output in enumerate(outputs):
            before = _held_by_all(output.value.shards)
            for j, option in enumerate(options):
                after = _held_by_all(option.input.shards)
                if (before, after) not in costs_of_move:
                    forbidden = in_place and before != after
                    move = np.full(MOVED, inf) if forbidden else self._costs_of_move(output.value, option.input.shards)
                    costs_of_move[before, after] = move
                costs[i, j] = output.costs + costs_of_move[before, after]
        return costs

    def _costs_of_move(self, value: Value, target: Shards) -> Numbers:
        return self._price(lambda verbs: verbs.move(value, target), self._kept_elsewhere(value)).costs

    def _kept_elsewhere(self, value: Value) -> list[torch.Tensor]:
        """The value's array, if another part or the first stage counts it as kept."""
        return [value.array] if value.trained or value.array is self.inputs else []

    def _price(
        self, forward: Callable[[Verbs], Coroutine[Any, Any, Value]], kept_elsewhere: Sequence[torch.Tensor]
    ) -> PricedValue:
        """The result of some computations and moves, with the costs of the moves and the bytes that only they keep."""
        outline = Outline(self.rank)
        result = outline.run(forward(outline))
        kept = count_kept_bytes(self.rank, forward, kept_elsewhere) if self.counts_kept else 0
        return PricedValue(result, np.array([*outline.seconds(self.links, self.node), kept]))

    def pieces(self, layer: SplitLayer) -> dict[str, torch.Tensor]:
        """The rank's pieces of a layer's parameters, and the buffers."""
        trained = {name: parameter.requires_grad for name, parameter in layer.module.named_parameters()}
        pieces = {
            name: piece(self.rank, shards, self.dtype, trained[name]) for name, shards in layer.parameters().items()
        }
        return {**pieces, **dict(layer.module.named_buffers())}


@dataclass(frozen=True)
class LayerPart:
    """A part of a layer with factors of its own: one multiplication, or the two of half a Transformer's layer.

    Args:
        name, module: of the layer.
        number: of the part in it.
        operators: the names of the part's multiplications.
    """

    name: str
    module: nn.Module
    number: int
    operators: Sequence[str]

    @classmethod
    def all_of(cls, name: str, module: nn.Module) -> "list[LayerPart]":
        """The parts of a layer; none where nothing in it has factors."""
        every_operator = list(operators(name, module))
        pairs = [every_operator[first : first + 2] for first in range(0, len(every_operator), 2)]
        return [cls(name, module, number, pair) for number, pair in enumerate(pairs)]


def _pass_of(verbs: Verbs) -> ForwardPass:
    """A forward pass whose random numbers are not drawn."""
    return ForwardPass(verbs, KeyedRandom(0, 0, 0))


def _held_by_all(shards: Shards) -> Any:
    """What every rank holds of a tensor: equal for two layouts between which nothing moves."""
    return tuple(shards.layout.partial.items()), tuple(map(shards.pieces, range(shards.mesh.size)))
