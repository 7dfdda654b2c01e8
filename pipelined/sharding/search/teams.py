"""What a team of ranks spends on a layout that can be trained, layer by layer, and the layouts that no other beats.

The members of a team train a chain as `pipelined.sharding.operators` runs it. So between operators a tensor is cut by
tokens into as many parts as the operator has rows that comes first to it; where the next has other rows, an all-to-all
of the whole team follows. Weights are whole but for their factors, or all in one state of ZeRO; biases and norms have
sums of their own, and each exchange of statistics is one of the norm's or the loss's.

A pipeline has layers of several kinds in each stage, so a layout has costs of each kind. One layout beats another if
none of its costs is higher: every step of every plan is then as short, and takes as little memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from pipelined.sharding.search.chain import Chain, Operator
from pipelined.sharding.search.dynamic import pareto_front
from pipelined.sharding.search.matmul import COLUMNS, ROWS, Factors, RingPasses, factorizations
from pipelined.sharding.search.network import GroupShape, Network
from pipelined.sharding.search.problem import Numbers

EMBEDDING, MATRIX = "embedding", "matrix"
"""The kind of layer of an embedding beside a head of the same layout, and of the matrix of either."""
TeamLayout = tuple[Factors, ...]
"""The factors of each operator of a chain."""
Cuts = tuple[tuple[str, int], ...]
"""Streams, each with the parts that it is cut into by tokens."""
PHASES = ("forward", "backward", "update")


class LayerCosts(NamedTuple):
    """What one layer costs each member beside its share of the computing.

    Args:
        forward, backward: seconds of the moves of a microbatch.
        update: seconds of the sums within the team, once a step.
        numbers: parameters that a member holds.
        kept: numbers of a microbatch that a member keeps for the backward beyond an even share.
        weights: seconds of `backward` that belong to its weight half.
        gathered: numbers of weights that a member gathers for a step (zero2).
    """

    forward: float = 0.0
    backward: float = 0.0
    update: float = 0.0
    numbers: float = 0.0
    kept: float = 0.0
    weights: float = 0.0
    gathered: float = 0.0


@dataclass(frozen=True)
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
    """

    chain: Chain
    ranks: int
    network: Network
    node: int
    kinds: Sequence[str]
    states: Sequence[str] = ()
    _prices: dict[tuple[Any, ...], Numbers] = field(default_factory=dict, compare=False)

    def options(self, op: Operator) -> list[Factors]:
        """The factors with which each member has a sequence, and a head where there are heads."""
        return [f for f in factorizations(self.ranks) if self._fits(op, f)]

    def fits(self, layout: TeamLayout) -> bool:
        """Whether each member has a sequence and a head in every operator."""
        return all(self._fits(op, f) for op, f in zip(self.chain.operators, layout, strict=True))

    def _fits(self, op: Operator, f: Factors) -> bool:
        every = self.chain.operators
        rows = [each.sequences for each in every if each.sequences is not None]
        heads = [each.heads for each in every if each.heads is not None and (each is op or _follows(op, each))]
        return f.rows <= min(rows, default=f.rows) and all(f.columns * f.contraction <= number for number in heads)

    def costs(self, layout: TeamLayout) -> dict[str, LayerCosts]:
        """The costs of each kind of layer in a layout."""
        total, cuts = np.zeros(len(self._columns)), dict[str, int]()
        for place, (op, f) in enumerate(zip(self.chain.operators, layout, strict=True)):
            cuts = self._cuts_behind(op, f, cuts)
            total = total + self._priced(place, f, cuts)
        return self._by_kind(total)

    @property
    def possible(self) -> bool:
        """Whether any layout gives each member a sequence and a head."""
        return all(map(self.options, self.chain.operators))

    @property
    def front(self) -> list[TeamLayout]:
        """The layouts that no other beats, and a few more; empty where none fits."""
        return self._labels[0]

    def numbers_of_front(self, kind: str, field: str) -> Numbers:
        """One field of `LayerCosts`, of each layout of the front."""
        return self._labels[1][:, self._columns.index((kind, field))]

    @cached_property
    def _labels(self) -> tuple[list[TeamLayout], Numbers]:
        """The layouts of the front and their costs [layout, column], found along the chain.

        Of beginnings of the chain with the same cuts only those stay that no other beats. An operator of a kind that no
        other before it has adds costs of its own alone, so there its options are compared, and not their sums.
        """
        states: dict[Cuts, tuple[list[TeamLayout], Numbers]] = {(): ([()], np.zeros((1, len(self._columns))))}
        for place, op in enumerate(self.chain.operators):
            later = {
                name
                for other in self.chain.operators[place + 1 :]
                for name in (other.input_stream, other.output_stream)
            }
            parts: dict[Cuts, list[tuple[list[TeamLayout], Numbers]]] = {}
            for cuts, (layouts, costs) in states.items():
                options: dict[Cuts, list[tuple[Factors, Numbers]]] = {}
                for f in self.options(op):
                    behind = self._cuts_behind(op, f, dict(cuts))
                    kept = tuple(sorted((name, cut) for name, cut in behind.items() if name in later))
                    options.setdefault(kept, []).append((f, self._priced(place, f, behind)))
                for kept, some in options.items():
                    unbeaten = pareto_front(np.array([price for _, price in some]))
                    for f, price in (some[at] for at in sorted(unbeaten.tolist())):
                        parts.setdefault(kept, []).append(([(*layout, f) for layout in layouts], costs + price))
            joined = {cuts: _joined(some) for cuts, some in parts.items()}
            again = self.kinds[place] in self.kinds[:place]
            states = {cuts: _unbeaten(*some) if again else some for cuts, some in joined.items()}
        return _joined(list(states.values())) if states else ([], np.zeros((0, len(self._columns))))

    @cached_property
    def _columns(self) -> list[tuple[str, str]]:
        kinds = dict.fromkeys([*self.kinds, EMBEDDING, MATRIX])
        return [(kind, name) for kind in kinds for name in LayerCosts._fields]

    def _by_kind(self, vector: Numbers) -> dict[str, LayerCosts]:
        rows = vector.reshape(-1, len(LayerCosts._fields)).tolist()
        return {
            kind: LayerCosts(*row)
            for (kind, _), row in zip(self._columns[:: len(LayerCosts._fields)], rows, strict=True)
        }

    @staticmethod
    def _cuts_behind(op: Operator, f: Factors, cuts: Mapping[str, int]) -> dict[str, int]:
        """The cuts of the streams so far: a stream has that of the operator that comes first to it."""
        return {**{name: f.rows for name in (op.input_stream, op.output_stream) if name}, **cuts}

    def _priced(self, place: int, f: Factors, cuts: Mapping[str, int]) -> Numbers:
        op = self.chain.operators[place]
        before, after = (cuts[name] if name else f.rows for name in (op.input_stream, op.output_stream))
        key = place, f, before, after
        if key not in self._prices:
            found = dict.fromkeys(self._columns, 0.0)
            for where, name, number in _Member(self, op, f, before, after, self.states[place] if self.states else "none").costs(self.kinds[place]):
                found[where, name] += number
            self._prices[key] = np.array(list(found.values()))
        return self._prices[key]


class _Member:
    """One member's part of an operator, with factors, between streams that are cut by tokens into so many parts."""

    def __init__(self, team: TeamChain, op: Operator, f: Factors, before: int, after: int, state: str):
        self._team, self._op, self._f, self._before, self._after, self._state = team, op, f, before, after, state

    def costs(self, kind: str) -> Iterator[tuple[str, str, float]]:
        """(kind of layer, field of `LayerCosts`, number)."""
        op, f, matmul = self._op, self._f, self._op.matmul
        share = f.columns * f.contraction
        weight_of = MATRIX if matmul.embeds else kind
        state = self._state
        for ring in matmul.rings(f, state=state, regather_input=state == "zero3"):
            where = EMBEDDING if ring.of_embedding else weight_of if ring.phase == "update" else kind
            group = f[ring.axis], self._stride(ring.axis)
            yield where, ring.phase, self._ring(*group, ring)
            if ring.phase == "backward" and ring.axis == ROWS:  # gradients of weights are scattered
                yield where, "weights", self._ring(*group, ring._replace(passes=ring.sums))
        for each in ("forward", "backward"):
            exchanged = self._exchange(self._before, f.rows, matmul.inputs)
            yield (
                kind,
                each,
                exchanged + self._exchange(f.rows, self._after, op.output_columns if op.output_stream else 0),
            )
            yield kind, each, self._norm() if op.normed else 0.0
            yield EMBEDDING, each, exchanged if matmul.embeds else 0.0
        yield kind, "forward", self._loss() if op.output_stream is None and not matmul.of_ids else 0.0
        yield kind, "update", self._sum(f.rows, matmul.outputs / share) if op.biased else 0.0
        yield kind, "numbers", matmul.outputs / share if op.biased else 0.0
        piece = matmul.inputs * matmul.outputs / share
        yield weight_of, "numbers", piece / f.rows if state in ("zero2", "zero3") else piece
        yield weight_of, "gathered", piece if state == "zero2" else 0.0
        yield kind, "kept", sum(self._kept())
        if op.normed:
            yield kind, "update", 2 * self._sum(self._before, self._of_stream(matmul.inputs))
            yield kind, "numbers", 2 * self._of_stream(matmul.inputs)
        if matmul.embeds:
            yield EMBEDDING, "update", self._sum(self._before, self._of_stream(op.positions))
            yield EMBEDDING, "numbers", self._of_stream(op.positions)
            yield EMBEDDING, "kept", sum(self._kept_of_input())

    def _kept(self) -> Iterator[float]:
        """What a tape keeps of the moves: both sides of each, of which an even share is counted elsewhere."""
        op, f, ranks = self._op, self._f, self._team.ranks
        yield from self._kept_of_input()
        yield op.matmul.tokens * op.matmul.outputs / (f.rows * f.columns) if f.contraction > 1 else 0.0
        yield op.matmul.tokens * op.output_columns / ranks if op.output_stream and self._after != f.rows else 0.0

    def _kept_of_input(self) -> Iterator[float]:
        came = self._op.matmul.tokens * self._op.matmul.inputs / self._team.ranks
        yield came * self._f.columns if self._f.columns > 1 else 0.0
        yield came if self._before != self._f.rows else 0.0

    def _of_stream(self, numbers: float) -> float:
        """Of numbers that lie as the columns of the stream before, those of one member."""
        return numbers * self._before / self._team.ranks

    def _stride(self, axis: int) -> int:
        """Members stand in the order rows, contraction, columns."""
        _, columns, contraction = self._f
        return columns * contraction if axis == ROWS else 1 if axis == COLUMNS else columns

    def _sum(self, rows: int, length: float) -> float:
        """Of gradients of this length, over the members that have the same columns."""
        return self._ring(rows, self._team.ranks // rows, RingPasses("update", ROWS, length, 2, 1)) if length else 0.0

    def _norm(self) -> float:
        """Two statistics, each one number a token, of all columns."""
        tokens = self._op.matmul.tokens / self._before
        return self._ring(self._team.ranks // self._before, 1, RingPasses("forward", COLUMNS, tokens, 4, 2))

    def _loss(self) -> float:
        """The cross-entropy's three numbers a token in two sums over the columns, and the sum of the loss itself."""
        f, tokens = self._f, self._op.matmul.tokens / self._f.rows
        columns = f.columns * f.contraction
        statistics = (self._ring(columns, 1, RingPasses("forward", COLUMNS, n * tokens, 2, 1)) for n in (1, 2))
        return sum(statistics) + self._ring(f.rows, columns, RingPasses("forward", ROWS, 1, 2, 1))

    def _ring(self, size: int, stride: int, ring: RingPasses) -> float:
        group, network = self._group(size, stride), self._team.network
        plain, adding = (network.ring(group, ring.length, sums) for sums in (False, True))
        return (ring.passes - ring.sums) * plain + ring.sums * adding

    def _exchange(self, before: int, after: int, columns: int) -> float:
        """From one cut to another: one message to each other member, empty ones as well."""
        if before == after or not columns:
            return 0.0
        part, ranks = self._op.matmul.tokens * columns / self._team.ranks, self._team.ranks
        return self._team.network.exchange(self._group(ranks, 1), _sent(ranks, before, after) * part)

    def _group(self, size: int, stride: int) -> GroupShape:
        """How members at this distance lie over nodes; unless nodes and teams fit, each counts as on its own node."""
        node, team = self._team.node, self._team.ranks
        if not node or size == 1:
            return GroupShape(1, size)
        if (node % team and team % node) or node % stride:
            return GroupShape(size, 1)
        inside = min(size, node // stride)
        return GroupShape(size // inside, inside) if size % inside == 0 else GroupShape(size, 1)


def _follows(op: Operator, attention: Operator) -> bool:
    return op.input_stream is not None and op.input_stream == attention.output_stream


@cache
def _sent(ranks: int, before: int, after: int) -> float:
    """The share of its part that the busiest of a team sends, from one cut to another; tokens are the major digit."""

    def common(rank: int) -> Fraction:
        found = Fraction(ranks)
        places = [(divmod(rank, ranks // cut), cut) for cut in (before, after)]
        for digit in range(2):
            ends = [(place[digit], cut if digit == 0 else ranks // cut) for place, cut in places]
            low, high = max(Fraction(at, of) for at, of in ends), min(Fraction(at + 1, of) for at, of in ends)
            found *= max(Fraction(0), high - low)
        return found

    return float(1 - min(map(common, range(ranks))))


def _joined(parts: list[tuple[list[TeamLayout], Numbers]]) -> tuple[list[TeamLayout], Numbers]:
    return [layout for layouts, _ in parts for layout in layouts], np.concatenate([costs for _, costs in parts])


def _unbeaten(layouts: list[TeamLayout], costs: Numbers) -> tuple[list[TeamLayout], Numbers]:
    places = np.sort(pareto_front(costs))
    return [layouts[place] for place in places.tolist()], costs[places]
