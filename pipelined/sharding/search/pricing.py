"""Prices of a chain on a machine: what an operator, a norm and a change of a stream's layout send, take and hold.

Whatever a strategy costs is a sum of `PriceTerm`s; the matrices of the search are made of the same numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any, NamedTuple

from pipelined.sharding.search.chain import Chain, Operator
from pipelined.sharding.search.matmul import COLUMNS, RingPasses, Split, whole
from pipelined.sharding.search.network import GroupShape, Network
from pipelined.sharding.search.options import Option, options_of
from pipelined.sharding.search.streams import Exchange, StreamCut, autoddl_rule, exchange_entering, exchange_leaving

PHASES = ("forward", "backward", "update")


class PriceTerm(NamedTuple):
    """A part of a step's price.

    Args:
        phase: one of `PHASES`.
        elements: what the busiest rank sends in a step.
        seconds: of a step.
    """

    phase: str
    elements: float
    seconds: float


class EdgeKind(Enum):
    """What an edge joins: a stream to an operator, an operator to a stream, or two operators."""

    ENTER = "enter"
    LEAVE = "leave"
    DIRECT = "direct"


@dataclass(frozen=True)
class Edge:
    """Where a tensor may change its layout, between two neighbours of the walk along a chain.

    Args:
        operator: index of the operator that it belongs to.
        columns: of the tensor.
        times: changes in a microbatch, each way; 0: the operator reads ids, which are everywhere.
        norms: norms before the change.
        attention: attention is before it.
    """

    kind: EdgeKind
    operator: int
    columns: int
    times: int
    norms: int = 0
    attention: bool = False

    def exchange(self, before: Any, after: Any) -> Exchange:
        """What is exchanged between the layouts of the two neighbours, each a `Split` or a `StreamCut`."""
        if not self.times:
            return Exchange((0.0,), (1,))
        if self.kind is EdgeKind.ENTER:
            return exchange_entering(before, after)
        return (exchange_leaving if self.kind is EdgeKind.LEAVE else autoddl_rule)(before, after, self.attention)


@dataclass(frozen=True)
class PricedChain:
    """A chain on a machine, and what all that a strategy does in a step costs there.

    Args:
        chain: what is split.
        levels: ranks; or nodes, and ranks of a node.
        network: the links.
        microbatches: of a step.
        free_streams: streams may be cut anywhere between their operators' cuts; else only as the paper has it.
    """

    chain: Chain
    levels: tuple[int, ...]
    network: Network
    microbatches: int = 1
    free_streams: bool = False

    @property
    def ranks(self) -> int:
        return prod(self.levels)

    @property
    def by_streams(self) -> bool:
        """Whether streams are chosen as well: the paper's rule knows none, but also no residual that comes back."""
        return self.free_streams or self.chain.has_residual

    def options(self, operator: Operator, replicas: int | None = None, full: bool = False) -> list[Option]:
        """All ways to split an operator.

        Args:
            replicas: the largest p0; None: any.
            full: also split states, and inputs that are gathered again where activations count as memory.
        """
        regather = full and self.chain.keeps
        return list(options_of(operator, self.levels, replicas=replicas, zero=full, regather_input=regather))

    def rings(self, operator: Operator, option: Option) -> list[tuple[RingPasses, GroupShape]]:
        """The ring passes of an operator in a step, each with its ranks."""
        factors = whole(option.split)
        rings = operator.matmul.rings(factors, self.microbatches, option.state, option.regather_input)
        return [(ring, _group(option.split, ring.axis)) for ring in rings]

    def operator_terms(self, operator: Operator, option: Option) -> Iterator[PriceTerm]:
        """What an operator and its like do."""
        for ring, group in self.rings(operator, option):
            seconds = operator.repeated * self.network.passes(group, ring)
            yield PriceTerm(ring.phase, operator.repeated * ring.elements(group.size), seconds)

    def edge_terms(self, edge: Edge, before: Any, after: Any) -> Iterator[PriceTerm]:
        """What an edge between two layouts does."""
        exchange = edge.exchange(before, after)
        times = edge.times * self.microbatches
        elements = times * exchange.elements(self._part(edge))
        seconds = self.microbatches * self.exchange_seconds(edge, exchange)
        yield PriceTerm("forward", elements, seconds / 2)
        yield PriceTerm("backward", elements, seconds / 2)
        for ring, group in self._norm_rings(before) if edge.norms else ():
            seconds = edge.norms * self.network.passes(group, ring)
            yield PriceTerm(ring.phase, edge.norms * ring.elements(group.size), seconds)

    def exchange_seconds(self, edge: Edge, exchange: Exchange) -> float:
        """Seconds of a microbatch that an edge takes for its exchange, there and back."""
        return exchange.seconds(self.network, self._part(edge)) * 2 * edge.times

    def norm_seconds(self, edge: Edge, stream: StreamCut) -> float:
        """Seconds of a microbatch that an edge takes for its norms, there and back."""
        seconds = sum(self.network.passes(group, ring) for ring, group in self._norm_rings(stream))
        return edge.norms * (seconds / self.microbatches)

    def memory_bytes(self, operator: Operator, option: Option) -> float:
        """Bytes that an operator and its like hold on each rank."""
        factors = whole(option.split)
        numbers = operator.matmul.state_numbers(factors, option.state)
        if self.chain.keeps and not option.regather_input:
            numbers += operator.matmul.kept_numbers(factors, self.microbatches)
        return operator.repeated * numbers * self.chain.itemsize

    def _norm_rings(self, stream: StreamCut) -> list[tuple[RingPasses, GroupShape]]:
        """The ring passes of a norm's statistics in a step, among the ranks that share tokens.

        Forward the mean, then the deviation from it, one number a token each; backward two numbers at once.
        """
        sharing_ranks = [ranks // cut for ranks, cut in zip(self.levels, stream, strict=True)]
        group = GroupShape(prod(sharing_ranks[:-1]), sharing_ranks[-1])
        tokens = self.chain.operators[0].matmul.tokens / prod(stream) / self.microbatches
        n = self.microbatches
        forward = RingPasses("forward", COLUMNS, tokens, 4 * n, 2 * n, all_reduces=2 * n)
        return [(forward, group), (RingPasses("backward", COLUMNS, 2 * tokens, 2 * n, n, all_reduces=n), group)]

    def _part(self, edge: Edge) -> float:
        """Elements of a rank's part of an edge's tensor, for a microbatch."""
        tokens = self.chain.operators[edge.operator].matmul.tokens
        return tokens * edge.columns / self.ranks / self.microbatches


def _group(split: Split, axis: int) -> GroupShape:
    counts = [factors[axis] for factors in split]
    return GroupShape(prod(counts[:-1]), counts[-1])
