"""The costs of one operator of a chain for each member of a team: its moves, and what it holds and keeps."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from pipelined.sharding.collective_moves import GATHERED
from pipelined.sharding.factors import Factors
from pipelined.sharding.search.chain import Operator
from pipelined.sharding.search.matmul import COLUMNS, ROWS, RingPasses
from pipelined.sharding.search.network import GroupShape, Network

EMBEDDING, MATRIX = "embedding", "matrix"
"""The kind of layer of an embedding beside a head of the same layout, and of the matrix of either."""


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


@dataclass(frozen=True, kw_only=True)
class TeamOperator:
    """One member's part of an operator.

    Args:
        ranks, network, node: the team, as of a `TeamChain`.
        factors: of the operator.
        before, after: the parts into which the streams before and behind it are cut by tokens.
        state: of its weight, one of `matmul.STATES`.
        cast: bytes of a number as autocast keeps it beside the original, over those of the original; 0: it does not.
    """

    ranks: int
    network: Network
    node: int
    op: Operator
    factors: Factors
    before: int
    after: int
    state: str
    cast: float = 0.0

    def costs(self, kind: str) -> Iterator[tuple[str, LayerCosts]]:
        """(kind of layer, costs) pairs; the caller adds those of one kind.

        Args:
            kind: of the operator, without its weight where that is an embedding, too.
        """
        weight_of = MATRIX if self.op.matmul.embeds else kind
        yield from self._rings(kind, weight_of)
        yield from self._streams(kind)
        yield from self._weight(weight_of)
        yield from self._small_parameters(kind)
        yield kind, LayerCosts(kept=sum(self._numbers_kept()) + self.cast * self._numbers_taken)
        if self.op.matmul.embeds:
            yield EMBEDDING, LayerCosts(kept=sum(self._kept_of_input()))

    def _rings(self, kind: str, weight_of: str) -> Iterator[tuple[str, LayerCosts]]:
        """The gathers and sums of the multiplication, and of the embedding by its weight."""
        for ring in self.op.matmul.rings(self.factors, state=self.state, regather_input=self.state == "zero3"):
            layer_kind = EMBEDDING if ring.of_embedding else weight_of if ring.phase == "update" else kind
            group = self.factors[ring.axis], self._stride(ring.axis)
            yield layer_kind, LayerCosts(**{ring.phase: self._passes(*group, ring)})
            if ring.phase == "backward" and ring.axis == ROWS:  # gradients of weights are scattered
                yield layer_kind, LayerCosts(weights=self._passes(*group, ring._replace(passes=ring.sums)))

    def _streams(self, kind: str) -> Iterator[tuple[str, LayerCosts]]:
        """The exchanges before and behind the multiplication, and the statistics of norm and loss."""
        op, f, matmul = self.op, self.factors, self.op.matmul
        before = self._exchange(self.before, f.rows, matmul.inputs)
        behind = self._exchange(f.rows, self.after, op.output_columns if op.output_stream else 0)
        forward, backward = self._norm() if op.normed else (0.0, 0.0)
        yield kind, LayerCosts(forward=before + behind + forward, backward=before + behind + backward)
        if matmul.embeds:
            yield EMBEDDING, LayerCosts(forward=before, backward=before)
        if op.output_stream is None and not matmul.of_ids:
            yield kind, LayerCosts(forward=self._loss())

    def _weight(self, kind: str) -> Iterator[tuple[str, LayerCosts]]:
        """What a member holds of the weight, and gathers of it for a step."""
        f, matmul = self.factors, self.op.matmul
        piece = matmul.inputs * matmul.outputs / (f.columns * f.contraction)
        numbers = piece / f.rows if self.state in ("zero2", "zero3") else piece
        yield kind, LayerCosts(numbers=numbers, gathered=piece if self.state == "zero2" else 0.0)

    def _small_parameters(self, kind: str) -> Iterator[tuple[str, LayerCosts]]:
        """Biases, norms and positions: numbers, and the sums of their gradients."""
        op, f = self.op, self.factors
        if op.biased:
            bias = op.matmul.outputs / (f.columns * f.contraction)
            yield kind, LayerCosts(update=self._sum(f.rows, bias), numbers=bias)
        if op.normed:
            norm = self._stream_share(op.matmul.inputs)
            yield kind, LayerCosts(update=2 * self._sum(self.before, norm), numbers=2 * norm)
        if op.matmul.embeds:
            positions = self._stream_share(op.positions)
            yield EMBEDDING, LayerCosts(update=self._sum(self.before, positions), numbers=positions)

    def _numbers_kept(self) -> Iterator[float]:
        """What a tape keeps of the moves: both sides of each, without the even share that is counted elsewhere."""
        op, f, ranks = self.op, self.factors, self.ranks
        yield from self._kept_of_input(gathered=self.state != "zero3")  # which frees it, and gathers it again
        yield op.matmul.tokens * op.matmul.outputs / (f.rows * f.columns) if f.contraction > 1 else 0.0
        yield op.matmul.tokens * op.output_columns / ranks if op.output_stream and self.after != f.rows else 0.0
        columns = ranks // self.before
        if op.normed and columns > 1:  # a norm's 7 numbers a token, or of each rank statistics and mean's distance
            norm_numbers = 3 * columns + 6 if columns <= GATHERED else 7
            yield (norm_numbers - 7 / columns) * op.matmul.tokens / self.before

    @property
    def _numbers_taken(self) -> float:
        """The numbers of input and weight that the multiplication takes; autocast keeps a copy for each microbatch."""
        f, matmul = self.factors, self.op.matmul
        return matmul.inputs * (matmul.tokens / f.rows + matmul.outputs / f.columns) / f.contraction

    def _kept_of_input(self, gathered: bool = True) -> Iterator[float]:
        """What is kept of the input; an embedding keeps the same, as its sum over the columns leaves it there."""
        received = self.op.matmul.tokens * self.op.matmul.inputs / self.ranks
        yield received * self.factors.columns if gathered and self.factors.columns > 1 else 0.0
        yield received if self.before != self.factors.rows else 0.0

    def _stream_share(self, numbers: float) -> float:
        """One member's share of numbers that lie as the columns of the stream before."""
        return numbers * self.before / self.ranks

    def _stride(self, axis: int) -> int:
        """Members stand in the order rows, contraction, columns."""
        _, columns, contraction = self.factors
        return columns * contraction if axis == ROWS else 1 if axis == COLUMNS else columns

    def _sum(self, rows: int, length: float) -> float:
        """Seconds to sum gradients of this length over the members that have the same columns."""
        return self._all_reduces(rows, self.ranks // rows, length) if length else 0.0

    def _norm(self) -> tuple[float, float]:
        """Seconds of two statistics over all columns, each one number a token, in the forward and in the backward."""
        columns, tokens = self.ranks // self.before, self.op.matmul.tokens / self.before
        if columns > GATHERED:
            return (self._all_reduces(columns, 1, tokens, 2),) * 2
        forward, backward = (RingPasses("", COLUMNS, 2 * columns * tokens, 1, sums) for sums in (0, 1))
        return self._passes(columns, 1, forward), self._passes(columns, 1, backward)

    def _loss(self) -> float:
        """Seconds of the cross-entropy: three numbers a token in two sums over the columns, and the sum of the loss."""
        f = self.factors
        tokens = self.op.matmul.tokens / self.factors.rows
        columns = f.columns * f.contraction
        statistics = (self._all_reduces(columns, 1, n * tokens) for n in (1, 2))
        return sum(statistics) + self._all_reduces(f.rows, columns, 1)

    def _all_reduces(self, size: int, stride: int, length: float, count: int = 1) -> float:
        """Seconds of `count` all-reduces over this many members at this distance."""
        return self._passes(size, stride, RingPasses("", ROWS, length, 2 * count, count, all_reduces=count))

    def _passes(self, size: int, stride: int, ring: RingPasses) -> float:
        return self.network.passes(self._group(size, stride), ring)

    def _exchange(self, before: int, after: int, columns: int) -> float:
        """From one cut to another: one message to each other member, empty ones as well."""
        if before == after or not columns:
            return 0.0
        part = self.op.matmul.tokens * columns / self.ranks
        ranks = self.ranks
        return self.network.exchange(self._group(ranks, 1), _share_sent(ranks, before, after) * part, part)

    def _group(self, size: int, stride: int) -> GroupShape:
        """How members at this distance lie over nodes; unless nodes and teams fit, each counts as on its own node."""
        node, team = self.node, self.ranks
        if not node or size == 1:
            return GroupShape(1, size)
        if (node % team and team % node) or node % stride:
            return GroupShape(size, 1)
        inside = min(size, node // stride)
        return GroupShape(size // inside, inside) if size % inside == 0 else GroupShape(size, 1)


@cache
def _share_sent(ranks: int, before: int, after: int) -> float:
    """The share of its part that the busiest of a team sends, from one cut to another; tokens are the major digit."""

    def common(rank: int) -> Fraction:
        share = Fraction(ranks)
        coordinates = [(divmod(rank, ranks // cut), cut) for cut in (before, after)]
        for digit in range(2):
            ends = [(coordinate[digit], cut if digit == 0 else ranks // cut) for coordinate, cut in coordinates]
            low = max(Fraction(part, parts) for part, parts in ends)
            high = min(Fraction(part + 1, parts) for part, parts in ends)
            share *= max(Fraction(0), high - low)
        return share

    return float(1 - min(map(common, range(ranks))))
