"""A row of layers as a chain of choices: how to split each part that has factors, and what lies between two of them.

A choice costs the moves inside it, what it keeps, and the sums of its gradients once a step. Between two choices lie
the layers without factors: those are priced from where the one leaves its output to where the other takes its input.
All prices are of the code that trains, read by an `Outline`; what is kept is that of its record. Where a stage begins
each rank has its own rows, so nothing is chosen there, and each stage is a chain of its own.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import inf
from typing import Any

import numpy as np
import torch
from torch import nn

from collectives import Links
from pipelined.errors import UsageError
from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import Shards
from pipelined.sharding.factors import Factors
from pipelined.sharding.operators.outline import Outline
from pipelined.sharding.operators.stage_record import kept_by, piece
from pipelined.sharding.operators.tape import sum_path
from pipelined.sharding.operators.verbs import Reader, Value
from pipelined.sharding.search.matmul import factorizations
from pipelined.sharding.search.problem import Numbers
from pipelined.training.models.split.layer import BY_ROWS, ForwardPass, SplitLayer, gathered_output, team
from pipelined.training.models.split.row_choices import MOVED, FactorsByName, PartCosts, PartOption, RowChoices
from pipelined.training.models.split.table import leaves, operators, split_layer

Passing = Callable[[ForwardPass, Value], Coroutine[Any, Any, Value]]
"""What a value goes through between two choices."""


@dataclass(frozen=True, kw_only=True)
class RowChain:
    """A row that a team is to split.

    Args:
        row: the layers on the meta device, by name.
        aliases: further names of parameters that layers share, with the first of each.
        ranks: T.
        inputs: those of a microbatch, on the meta device.
        dtype: of parameters and moves.
        starts: the places in the row at which stages begin; there each rank has its own rows.
        links: their prices.
        node: ranks of a node; 0: all are on one.
        counts_kept: whether what is kept is counted, which takes longer.
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
        """The last: of uneven pieces it has the larger ones."""
        return self.ranks - 1

    def leaves(self) -> list[tuple[str, nn.Module]]:
        """The layers, those inside of others too."""
        return [leaf for name, module in self.row for leaf in leaves(name, module)]

    def choices(self) -> RowChoices:
        """Inputs, every part, where stages begin, and the loss; and what lies between."""
        walk = _Walk(self)
        for place, (row_name, row_module) in enumerate(self.row):
            if place in self.starts:
                walk.begin_stage()
            for name, module in leaves(row_name, row_module):
                walk.take(name, module)
        return walk.end()

    def factors(self, number: int) -> Iterator[tuple[Factors, ...]]:
        """Those of so many operators."""
        rows = self.inputs.shape[0]
        return product([f for f in factorizations(self.ranks) if f.rows <= rows], repeat=number)

    def shared_factors(self) -> Iterator[dict[str, Factors]]:
        """The factors of those that share a weight, which are one choice: each way to choose them."""
        names = dict[str, list[str]]()
        for leaf in self.leaves():
            for name, weight in operators(*leaf).items():
                names.setdefault(self.first(weight), []).append(name)
        shared = [each for each in names.values() if len(each) > 1]
        for factors in self.factors(len(shared)):
            yield {name: f for some, f in zip(shared, factors, strict=True) for name in some}

    def first(self, name: str) -> str:
        """The first name of a parameter."""
        return self.aliases.get(name, name)

    def options(
        self, part: "_LayerPart", x: Value, streams: Sequence[Value], counted: Set[str]
    ) -> Iterator[PartOption]:
        """The ways to split a part.

        Args:
            x: its input as it comes, however it is split.
            streams: of the second half of a Transformer's layer, how the stream may lie.
            counted: parameters of which the sums are counted already.
        """
        name, module = part.name, part.module
        first, *_ = every = operators(name, module)
        whole = dict.fromkeys(every, Factors(self.ranks, 1, 1))
        rows = sorted({stream.shards.mesh.sizes["rows"] for stream in streams})
        for stream in [{first: Factors(cut, 1, self.ranks // cut)} for cut in rows] or [{}]:
            for factors in self.factors(len(part.operators)):
                split = dict(zip(part.operators, factors, strict=True))
                try:
                    layer = split_layer(name, module, self.ranks, {**whole, **stream, **split})
                except UsageError:
                    continue
                yield self._priced(layer, part.number, split, x, counted)

    def _priced(self, layer: SplitLayer, number: int, split: FactorsByName, x: Value, counted: Set[str]) -> PartOption:
        part = layer.parts()[number]
        shards = part.enters(x.shards)
        pieces = self.pieces(layer)
        enters = Value(piece(self.rank, shards, x.array.dtype, trained=False), shards, x.trained)
        known = self._counted(x) and (x.trained or _lying(shards) == _lying(x.shards))
        gives, moved = self._moved(lambda run: part.forward(_at(run), enters, pieces), [enters.array] if known else [])
        forward, backward, kept = moved.tolist()
        trained = {name for name, each in layer.module.named_parameters() if each.requires_grad}
        update, numbers = 0.0, 0
        for name, each in layer.parameters().items():
            if name.startswith(part.own) and self.first(f"{layer.name}.{name}") not in counted:
                update += sum_path(each).seconds(self.links, self.dtype.itemsize, self.node) if name in trained else 0.0
                numbers += each.size(self.rank) if name in trained else 0
        return PartOption(split, enters, gives, PartCosts(forward, backward, kept, update, numbers))

    def _counted(self, x: Value) -> list[torch.Tensor]:
        """What another counts if it is kept: a result by the part before, the first stage's input by the stage."""
        return [x.array] if x.trained or x.array is self.inputs else []

    def _moved(
        self, part: Callable[[Reader], Coroutine[Any, Any, Value]], counted: Sequence[torch.Tensor] = ()
    ) -> tuple[Value, Numbers]:
        """What a part gives, and the costs of its moves, with what it keeps besides what is counted."""
        outline = Outline(self.rank)
        given = outline.run(part(outline))
        kept = kept_by(self.rank, part, counted) if self.counts_kept else 0
        return given, np.array([*outline.seconds(self.links, self.node), kept])

    def passed(self, x: Value, passing: Sequence[Passing]) -> tuple[Value, Numbers]:
        """A value behind the layers that it goes through, and the costs of their moves."""

        async def through(run: Reader) -> Value:
            value = x
            for each in passing:
                value = await each(_at(run), value)
            return value

        return self._moved(through, self._counted(x))

    def by_rows(self, x: Value) -> PartOption:
        """A value at the beginning of a stage."""
        shards = Shards(team(self.ranks), x.shards.lengths, BY_ROWS)
        value = Value(piece(self.rank, shards, x.array.dtype, trained=False), shards)
        return PartOption({}, value, value)

    def between(
        self, outputs: Sequence[tuple[Value, Numbers]], options: Sequence[PartOption], *, same: bool
    ) -> Numbers:
        """The costs from where values come to where they enter; same: they must lie there already."""
        found = np.zeros((len(outputs), len(options), MOVED))
        known = dict[Any, Numbers]()
        sides = [[_lying(x.shards) for x in side] for side in ((x for x, _ in outputs), (o.enters for o in options))]
        for i, (x, spent) in enumerate(outputs):
            for j, option in enumerate(options):
                key = sides[0][i], sides[1][j]
                if key not in known:
                    _, moved = self._moved(partial(_move, x, option.enters.shards), self._counted(x))
                    known[key] = np.full(MOVED, inf) if same and key[0] != key[1] else moved
                found[i, j] = spent + known[key]
        return found

    def pieces(self, layer: SplitLayer) -> dict[str, torch.Tensor]:
        """The last rank's pieces of a layer's parameters, and the buffers."""
        trained = {name: each.requires_grad for name, each in layer.module.named_parameters()}
        every = layer.parameters().items()
        pieces = {name: piece(self.rank, each, self.dtype, trained[name]) for name, each in every}
        return {**pieces, **dict(layer.module.named_buffers())}


@dataclass(frozen=True)
class _LayerPart:
    """A part of a layer with factors of its own: one multiplication, or the two of half a Transformer's layer.

    Args:
        name, module: of the layer.
        number: of the part in it.
        operators: the names of what has factors in it.
    """

    name: str
    module: nn.Module
    number: int
    operators: Sequence[str]

    @classmethod
    def all_of(cls, name: str, module: nn.Module) -> "list[_LayerPart]":
        """The parts of a layer; none where nothing in it has factors."""
        every = list(operators(name, module))
        return [
            cls(name, module, number, every[2 * number : 2 * number + 2]) for number in range((len(every) + 1) // 2)
        ]


class _Walk:
    """The choices along a row, from its inputs to the layer that was taken last."""

    def __init__(self, chain: RowChain):
        start = Value(chain.inputs, Shards(team(chain.ranks), chain.inputs.shape, ""), False)
        self._chain = chain
        self._outer = PartOption({}, start, start)
        self._options = [[self._outer]]
        self._moves = list[Numbers]()
        self._ends = [0]
        self._passing = list[Passing]()  # since the last choice
        self._counted = set[str]()

    def begin_stage(self) -> None:
        """A choice of one: each rank has its own rows."""
        outputs = self._outputs()
        self._ends.append(len(self._options))
        self._choose([self._chain.by_rows(outputs[0][0])], outputs)

    def take(self, name: str, module: nn.Module) -> None:
        """A layer: a choice for each of its parts, or what the last choice's output goes through."""
        chain = self._chain
        parts = _LayerPart.all_of(name, module)
        if not parts:
            layer = split_layer(name, module, chain.ranks, {})
            self._passing.append(partial(_through, layer, chain.pieces(layer)))
        for part in parts:
            outputs = self._outputs()
            second = part.number > 0
            streams = [option.enters for option in self._options[-1]] if second else []
            self._choose(list(chain.options(part, outputs[0][0], streams, self._counted)), outputs, same=second)
        self._counted |= {chain.first(f"{name}.{each}") for each, _ in module.named_parameters()}

    def end(self) -> RowChoices:
        """All choices, when the last layer's output has been gathered for the loss."""
        self._passing.append(lambda at, x: gathered_output(at.run, x))
        self._moves.append(np.array([[spent] for _, spent in self._outputs()]))
        return RowChoices([*self._options, [self._outer]], self._moves, [*self._ends, len(self._options)])

    def _outputs(self) -> list[tuple[Value, Numbers]]:
        """Of each option of the last choice, what comes out behind the layers since, and the costs of their moves."""
        return [self._chain.passed(option.leaves, self._passing) for option in self._options[-1]]

    def _choose(
        self, options: list[PartOption], outputs: Sequence[tuple[Value, Numbers]], *, same: bool = False
    ) -> None:
        self._moves.append(self._chain.between(outputs, options, same=same))
        self._options.append(options)
        self._passing = []


def _at(run: Reader) -> ForwardPass:
    return ForwardPass(run, KeyedRandom(0, 0, 0))


async def _move(x: Value, target: Shards, run: Reader) -> Value:
    return await run.move(x, target)


async def _through(layer: SplitLayer, pieces: Mapping[str, torch.Tensor], at: ForwardPass, x: Value) -> Value:
    return await layer.forward(at, x, pieces)


def _lying(shards: Shards) -> Any:
    """What every rank holds."""
    return tuple(shards.layout.partial.items()), tuple(map(shards.pieces, range(shards.mesh.size)))
