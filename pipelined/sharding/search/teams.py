"""The costs of a team's layouts that can be trained, layer by layer, and the layouts that no other beats.

The members of a team train a chain as `pipelined.sharding.operators` runs it. So between operators a tensor is cut by
tokens into as many parts as the row factor of the first operator that reads it; where the next has other rows, an
all-to-all of the whole team follows. Each weight is in a state of ZeRO; biases and norms have sums of their own, and
each exchange of statistics is one of the norm's or the loss's.

A pipeline has layers of several kinds in each stage, so a layout has costs of each kind. One layout beats another if
none of its costs is higher: every step of every plan is then as short, and takes as little memory.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pipelined.sharding.factors import Factors
from pipelined.sharding.search.chain import Chain, Operator
from pipelined.sharding.search.matmul import factorizations
from pipelined.sharding.search.methods.dynamic import pareto_front
from pipelined.sharding.search.network import Network
from pipelined.sharding.search.problem import Numbers
from pipelined.sharding.search.team_operator import EMBEDDING, MATRIX, LayerCosts, TeamOperator

TeamLayout = tuple[Factors, ...]
"""The factors of each operator of a chain."""
TeamCuts = tuple[tuple[str, int], ...]
"""Streams, each with the parts that it is cut into by tokens."""


class LayoutsOfChain(NamedTuple):
    """Layouts of a chain, or of its beginning, with their costs [layout, column]."""

    layouts: list[TeamLayout]
    costs: Numbers

    def followed_by(self, f: Factors, price: Numbers) -> "LayoutsOfChain":
        """Each layout with the factors of one operator more."""
        return LayoutsOfChain([(*layout, f) for layout in self.layouts], self.costs + price)

    def unbeaten(self) -> "LayoutsOfChain":
        """The layouts that no other of these beats."""
        indices = np.sort(pareto_front(self.costs))
        return LayoutsOfChain([self.layouts[index] for index in indices.tolist()], self.costs[indices])


class _TeamOption(NamedTuple):
    """The factors of one operator, with the cuts that they leave of later operators' streams, and their costs."""

    cuts: TeamCuts
    factors: Factors
    price: Numbers


@dataclass(frozen=True, kw_only=True)
class TeamChain:
    """A chain of one microbatch on a team.

    Args:
        chain: its operators, each of which is a layer or a part of one.
        ranks: the members.
        network: the links.
        node: ranks of a node; 0: all members are on one.
        kinds: the kind of layer of each operator, in order. Where its weight embeds as well, the embedding's moves and
            positions are of kind `EMBEDDING`, and the weight is of kind `MATRIX`.
        states: of each operator's weight, one of `matmul.STATES`; empty: none of all.
        fixed_factors: the factors of operators that have no others.
        cast: as of a `TeamOperator`.
    """

    chain: Chain
    ranks: int
    network: Network
    node: int
    kinds: Sequence[str]
    states: Sequence[str] = ()
    fixed_factors: Mapping[str, Factors] = field(default_factory=dict)
    cast: float = 0.0
    _prices: dict[tuple[Any, ...], Numbers] = field(default_factory=dict, compare=False)

    def options(self, op: Operator) -> list[Factors]:
        """The factors with which each member has a sequence, and a head where there are heads."""
        candidates = [self.fixed_factors[op.name]] if op.name in self.fixed_factors else factorizations(self.ranks)
        return [f for f in candidates if self._fits(op, f)]

    def fits(self, layout: TeamLayout) -> bool:
        """Whether each member has a sequence and a head in every operator."""
        return all(self._fits(op, f) for op, f in zip(self.chain.operators, layout, strict=True))

    def _fits(self, op: Operator, f: Factors) -> bool:
        operators = self.chain.operators
        rows = [each.sequences for each in operators if each.sequences is not None]
        heads = [
            each.heads for each in operators if each.heads is not None and (each is op or _follows_attention(op, each))
        ]
        return f.rows <= min(rows, default=f.rows) and all(f.columns * f.contraction <= number for number in heads)

    def costs(self, layout: TeamLayout) -> dict[str, LayerCosts]:
        total = np.zeros(len(self._columns))
        cuts = dict[str, int]()
        for index, (op, f) in enumerate(zip(self.chain.operators, layout, strict=True)):
            cuts = self._cuts_after(op, f, cuts)
            total = total + self._price_option(index, f, cuts)
        return self._by_kind(total)

    @property
    def possible(self) -> bool:
        """Whether any layout gives each member a sequence and a head."""
        return all(map(self.options, self.chain.operators))

    @property
    def front(self) -> list[TeamLayout]:
        """The layouts that no other beats, and a few more; empty where none fits."""
        return self._front.layouts

    def numbers_of_front(self, kind: str, field: str) -> Numbers:
        """One field of `LayerCosts`, of each layout of the front."""
        return self._front.costs[:, self._columns.index((kind, field))]

    @cached_property
    def _front(self) -> LayoutsOfChain:
        """The layouts of the front, found along the chain.

        Among beginnings of the chain with the same cuts only those stay that no other beats. If no operator before has
        its kind, an operator adds costs of its own alone, so there its options are compared, and not their sums.
        """
        beginnings: dict[TeamCuts, LayoutsOfChain] = {(): LayoutsOfChain([()], np.zeros((1, len(self._columns))))}
        for index, kind in enumerate(self.kinds):
            extended = defaultdict[TeamCuts, list[LayoutsOfChain]](list)
            for cuts, beginning in beginnings.items():
                for option in self._unbeaten_options(index, dict(cuts)):
                    extended[option.cuts].append(beginning.followed_by(option.factors, option.price))
            beginnings = {cuts: _join(parts) for cuts, parts in extended.items()}
            if kind in self.kinds[:index]:
                beginnings = {cuts: layouts.unbeaten() for cuts, layouts in beginnings.items()}
        return _join([*beginnings.values()] or [LayoutsOfChain([], np.zeros((0, len(self._columns))))])

    def _unbeaten_options(self, index: int, cuts: dict[str, int]) -> Iterator[_TeamOption]:
        """An operator's options behind these cuts, where none beats another that leaves the same cuts."""
        op = self.chain.operators[index]
        later = self.chain.operators[index + 1 :]
        streams = {name for each in later for name in (each.input_stream, each.output_stream)}
        options = defaultdict[TeamCuts, list[_TeamOption]](list)
        for f in self.options(op):
            after = self._cuts_after(op, f, cuts)
            cuts_left = tuple(sorted((name, cut) for name, cut in after.items() if name in streams))
            options[cuts_left].append(_TeamOption(cuts_left, f, self._price_option(index, f, after)))
        for same_cuts in options.values():
            unbeaten = pareto_front(np.array([option.price for option in same_cuts]))
            yield from (same_cuts[index] for index in sorted(unbeaten.tolist()))

    @cached_property
    def _columns(self) -> list[tuple[str, str]]:
        return [(kind, name) for kind in self._every_kind for name in LayerCosts._fields]

    @property
    def _every_kind(self) -> list[str]:
        return list(dict.fromkeys([*self.kinds, EMBEDDING, MATRIX]))

    def _by_kind(self, vector: Numbers) -> dict[str, LayerCosts]:
        rows = vector.reshape(-1, len(LayerCosts._fields)).tolist()
        return {kind: LayerCosts(*row) for kind, row in zip(self._every_kind, rows, strict=True)}

    @staticmethod
    def _cuts_after(op: Operator, f: Factors, cuts: Mapping[str, int]) -> dict[str, int]:
        """The cuts of the streams so far: a stream has that of the operator that comes first to it."""
        return {**{name: f.rows for name in (op.input_stream, op.output_stream) if name}, **cuts}

    def _price_option(self, index: int, f: Factors, cuts: Mapping[str, int]) -> Numbers:
        op = self.chain.operators[index]
        before, after = (cuts[name] if name else f.rows for name in (op.input_stream, op.output_stream))
        key = index, f, before, after
        if key not in self._prices:
            costs_of = {kind: np.zeros(len(LayerCosts._fields)) for kind in self._every_kind}
            state = self.states[index] if self.states else "none"
            part = TeamOperator(
                ranks=self.ranks,
                network=self.network,
                node=self.node,
                op=op,
                factors=f,
                before=before,
                after=after,
                state=state,
                cast=self.cast,
            )
            for kind, costs in part.costs(self.kinds[index]):
                costs_of[kind] += costs
            self._prices[key] = np.concatenate(list(costs_of.values()))
        return self._prices[key]


def _follows_attention(op: Operator, attention: Operator) -> bool:
    return op.input_stream is not None and op.input_stream == attention.output_stream


def _join(parts: list[LayoutsOfChain]) -> LayoutsOfChain:
    layouts = [layout for part in parts for layout in part.layouts]
    return LayoutsOfChain(layouts, np.concatenate([part.costs for part in parts]))
