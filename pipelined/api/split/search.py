"""`layout="auto"`: how the ranks of a team split every layer of a row, so that a step moves for the shortest time.

The row is a chain for the planner's dynamic programming. Its choices are the factors of each layer that has some, a
Transformer's layer being two of them. A choice costs the moves inside it, and the sums of its gradients once a step.
Between two choices lie the layers without factors: those are priced from where the one leaves its output to where the
other takes its input. All prices are of the code that trains, read by an `Outline`.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, product
from math import inf
from typing import Any

import numpy as np
import torch
from torch import nn

from collectives import Links
from pipelined.api.split.layer import ForwardPass, SplitLayer, by_rows, gathered_output, team
from pipelined.api.split.table import leaves, operators, split_layer
from pipelined.errors import UsageError
from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import Shards
from pipelined.sharding.factors import Factors
from pipelined.sharding.operators.outline import Outline
from pipelined.sharding.operators.record import piece
from pipelined.sharding.operators.tape import sum_path
from pipelined.sharding.operators.verbs import Value
from pipelined.sharding.search.dynamic import search
from pipelined.sharding.search.matmul import factorizations
from pipelined.sharding.search.problem import Choice, Numbers, Problem

AUTO = "auto"
FactorsByName = Mapping[str, Factors]
Passing = Callable[[ForwardPass, Value], Coroutine[Any, Any, Value]]
"""What a value goes through between two choices."""


@dataclass(frozen=True)
class PartOption:
    """One way to split a part of a layer.

    Args:
        factors: of what has some in it.
        enters, leaves: its input and its output.
        micro: seconds of a microbatch's moves, there and back.
        step: seconds of the sums of its gradients.
    """

    factors: FactorsByName
    enters: Value
    leaves: Value
    micro: float = 0.0
    step: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RowSearch:
    """A row that a team is to split.

    Args:
        row: the layers on the meta device, by name.
        aliases: further names of parameters that layers share, with the first of each.
        ranks: T.
        inputs: those of a microbatch, on the meta device.
        dtype: of parameters and moves.
        microbatches: of a step.
        starts: the places in the row at which stages begin; there each rank has its own rows.
        links: their prices.
    """

    row: Sequence[tuple[str, nn.Module]]
    aliases: Mapping[str, str]
    ranks: int
    inputs: torch.Tensor
    dtype: torch.dtype = torch.float32
    microbatches: int = 1
    starts: Sequence[int] = ()
    links: Links = field(default_factory=Links)

    @property
    def rank(self) -> int:
        """The last: of uneven pieces it has the larger ones."""
        return self.ranks - 1

    def layout(self) -> str:
        """The factors of every layer that has some, as `layout=` takes them; "" where no layer has any.

        Raises:
            UsageError: no layout gives each rank a row, a head and channels.
        """
        every = self.found()[1]
        names = [name for leaf in self._leaves() for name in operators(*leaf)]
        return ",".join(f"{name}={'.'.join(map(str, every[name]))}" for name in names)

    def found(self) -> tuple[float, FactorsByName]:
        """The seconds that a step moves at least, and the factors with which it does. Raises: as `layout`."""
        if hindrance := self._hindrance(self.ranks):
            raise self._refusal(hindrance)
        choices, moves = self._chain()
        best, least = dict[str, Factors](), inf
        for fixed in self._shared_factors():
            some, between = _restricted(choices, moves, fixed)
            if not all(len(choice.options) for choice in some):
                continue
            outcome = search(Problem(some, range(len(some)), between, self.microbatches))
            if outcome.strategy is not None and outcome.seconds < least:
                options = (choice.options[at] for choice, at in zip(some, outcome.strategy, strict=True))
                best, least = {name: f for option in options for name, f in option.factors.items()}, outcome.seconds
        if least == inf:
            raise self._refusal("layers that share a weight fit in no common way")
        return least, best

    def _leaves(self) -> list[tuple[str, nn.Module]]:
        return [leaf for name, module in self.row for leaf in leaves(name, module)]

    def _chain(self) -> tuple[list[Choice], list[Numbers]]:
        """Inputs, every part, and the loss; and what lies between, [option of one, option of the next]."""
        start = Value(self.inputs, Shards(team(self.ranks), self.inputs.shape, ""), False)
        choices, moves, passing = [_choice("inputs", [PartOption({}, start, start)])], list[Numbers](), list[Passing]()
        counted = set[str]()
        for place, (row_name, row_module) in enumerate(self.row):
            passing += [lambda at, x: by_rows(at.run, x)] if place in self.starts else []
            for name, module in leaves(row_name, row_module):
                if not (every := list(operators(name, module))):
                    layer = split_layer(name, module, self.ranks, {})
                    passing.append(partial(_through, layer, self._pieces(layer)))
                for number, names in enumerate(every[at : at + 2] for at in range(0, len(every), 2)):
                    before = choices[-1].options
                    gone = [self._passed(option.leaves, passing) for option in before]
                    streams = [option.enters for option in before] if number else []
                    options = list(
                        self._options(
                            (name, module), number=number, names=names, x=gone[0][0], streams=streams, counted=counted
                        )
                    )
                    moves.append(self._between(gone, options, same=bool(number)))
                    choices.append(_choice(name, options))
                    passing = []
                counted |= self._named(name, module)
        passing.append(lambda at, x: gathered_output(at.run, x))
        moves.append(np.array([[self._passed(option.leaves, passing)[1]] for option in choices[-1].options]))
        return [*choices, _choice("loss", [PartOption({}, start, start)])], moves

    def _options(
        self,
        leaf: tuple[str, nn.Module],
        *,
        number: int,
        names: Sequence[str],
        x: Value,
        streams: Sequence[Value],
        counted: set[str],
    ) -> Iterator[PartOption]:
        """The ways to split a part.

        Args:
            leaf: the layer, by name.
            number: of the part in it.
            names: of what has factors in it.
            x: a value as it comes, however it is split.
            streams: of the second half of a Transformer's layer, how the stream may lie.
            counted: parameters whose sums are counted already.
        """
        name, module = leaf
        rows = {stream.shards.mesh.sizes["rows"] for stream in streams}
        first, *_ = operators(name, module)
        whole = dict.fromkeys(operators(name, module), (self.ranks, 1, 1))
        for stream in [{first: (at, 1, self.ranks // at)} for at in sorted(rows)] or [{}]:
            for factors in self._factors(len(names)):
                split = dict(zip(names, factors, strict=True))
                try:
                    layer = split_layer(name, module, self.ranks, {**whole, **stream, **split})
                except UsageError:
                    continue
                yield self._priced(layer, number, split, x, counted)

    def _factors(self, number: int) -> Iterator[tuple[Factors, ...]]:
        rows = self.inputs.shape[0]
        return product([f for f in factorizations(self.ranks) if f.rows <= rows], repeat=number)

    def _priced(self, layer: SplitLayer, number: int, split: FactorsByName, x: Value, counted: set[str]) -> PartOption:
        part, outline = layer.parts()[number], Outline(self.rank)
        shards = part.enters(x.shards)
        enters = Value(piece(self.rank, shards, x.array.dtype, trained=False), shards, x.trained)
        leaves = outline.run(part.forward(_at(outline), enters, self._pieces(layer)))
        trained = {name for name, each in layer.module.named_parameters() if each.requires_grad}
        step = 0.0
        for name, each in layer.parameters().items():
            if name in trained and name.startswith(part.own) and self._first(f"{layer.name}.{name}") not in counted:
                step += sum_path(each).seconds(self.links, self.dtype.itemsize)
        return PartOption(split, enters, leaves, outline.seconds(self.links), step)

    def _passed(self, x: Value, passing: Sequence[Passing]) -> tuple[Value, float]:
        """A value behind the layers that it goes through, and the seconds of their moves."""
        outline = Outline(self.rank)
        for each in passing:
            x = outline.run(each(_at(outline), x))
        return x, outline.seconds(self.links)

    def _between(self, gone: Sequence[tuple[Value, float]], options: Sequence[PartOption], *, same: bool) -> Numbers:
        """Seconds from where values come to where they enter; same: they must lie there already."""
        found, known = np.zeros((len(gone), len(options))), dict[Any, float]()
        sides = [[_lying(x.shards) for x in side] for side in ((x for x, _ in gone), (o.enters for o in options))]
        for i, (x, spent) in enumerate(gone):
            for j, option in enumerate(options):
                key = sides[0][i], sides[1][j]
                if key not in known:
                    outline = Outline(self.rank)
                    outline.run(outline.move(x, option.enters.shards))
                    known[key] = inf if same and key[0] != key[1] else outline.seconds(self.links)
                found[i, j] = spent + known[key]
        return found

    def _pieces(self, layer: SplitLayer) -> dict[str, torch.Tensor]:
        trained = {name: each.requires_grad for name, each in layer.module.named_parameters()}
        every = layer.parameters().items()
        pieces = {name: piece(self.rank, each, self.dtype, trained[name]) for name, each in every}
        return {**pieces, **dict(layer.module.named_buffers())}

    def _named(self, name: str, module: nn.Module) -> set[str]:
        return {self._first(f"{name}.{each}") for each, _ in module.named_parameters()}

    def _first(self, name: str) -> str:
        return self.aliases.get(name, name)

    def _shared_factors(self) -> Iterator[dict[str, Factors]]:
        """The factors of those that share a weight, which are one choice: each way to choose them."""
        names = dict[str, list[str]]()
        for leaf in self._leaves():
            for name, weight in operators(*leaf).items():
                names.setdefault(self._first(weight), []).append(name)
        shared = [each for each in names.values() if len(each) > 1]
        for factors in self._factors(len(shared)):
            yield {name: f for some, f in zip(shared, factors, strict=True) for name in some}

    def _refusal(self, hindrance: str) -> UsageError:
        fits = [number for number in range(1, self.ranks) if number == 1 or not self._hindrance(number)]
        fact = f"no layout splits this row over {self.ranks} ranks a worker ({hindrance})"
        return UsageError(f"{fact}; use tensor {' or '.join(map(str, fits))}, or larger microbatches")

    def _hindrance(self, ranks: int) -> str:
        """Why a team of so many ranks cannot split a layer; "" if it can split all."""
        rows = self.inputs.shape[0]
        for name, module in self._leaves():
            every, wide = operators(name, module), [f for f in factorizations(ranks) if f.rows <= rows]
            tries: list[FactorsByName] = [dict.fromkeys(every, f) for f in wide] if every else [{}]
            fits = list[SplitLayer]()
            for split in tries:
                try:
                    fits.append(split_layer(name, module, ranks, split))
                except UsageError:
                    continue
            if not fits or (not every and fits[0].row_shards > rows):
                return f"layer {name} ({type(module).__name__}), rows of a microbatch: {rows}"
        return ""


def _at(outline: Outline) -> ForwardPass:
    return ForwardPass(outline, KeyedRandom(0, 0, 0))


async def _through(layer: SplitLayer, pieces: Mapping[str, torch.Tensor], at: ForwardPass, x: Value) -> Value:
    return await layer.forward(at, x, pieces)


def _lying(shards: Shards) -> Any:
    """What every rank holds."""
    return tuple(shards.layout.partial.items()), tuple(map(shards.pieces, range(shards.mesh.size)))


def _choice(name: str, options: Sequence[PartOption]) -> Choice:
    micro, step = (np.array([getattr(option, each) for option in options]) for each in ("micro", "step"))
    return Choice(name, options, micro, step, np.zeros(len(options)))


def _restricted(
    choices: Sequence[Choice], moves: Sequence[Numbers], fixed: FactorsByName
) -> tuple[list[Choice], list[Numbers]]:
    """The choices with the options that have these factors where they name them."""
    places = [
        np.array([at for at, option in enumerate(each.options) if not _differs(option.factors, fixed)], np.int64)
        for each in choices
    ]
    some = [_choice(each.name, [each.options[at] for at in of]) for each, of in zip(choices, places, strict=True)]
    between = [matrix[np.ix_(one, other)] for matrix, (one, other) in zip(moves, pairwise(places), strict=True)]
    return some, between


def _differs(factors: FactorsByName, fixed: FactorsByName) -> bool:
    return any(fixed.get(name, each) != each for name, each in factors.items())
