"""The matrix multiplication over p0·p1·p2 ranks: rows, columns and the contraction are split.

    I (S0:p0, B:p1, S1:p2) · W (B:p0, S1:p1, S0:p2) = O (S0:p0, S1:p1, P:p2)

Between operators activations are split over all ranks: rank q of a row of ranks holds column block q. Ranks stand in
the order rows, contraction, columns, so q = c · p1 + b for rank c of the contraction and rank b of the columns. So I is
gathered over p1 from neighbours to contiguous columns, and O is reduced and scattered over p2 to column block q, where
W's columns are the blocks c · p1 + b for every c. Nothing is permuted.

Where p0 ranks store parts of W as well, and both p0 and p1 are more than 1, the product is SUMMA's loop of rank-k
updates: the contraction is cut into panels, of which every rank has an equal share, and only one panel of I and one of
W are gathered at a time. On 2 x 2 ranks, of 8 numbers of the contraction, a panel has those marked with a:

    I, its columns on rank 0 | 1    a a . . | a a . .
    W, its rows on rank 0 | 1       a a . . | a a . .

Shapes: a lead, such as B sequences of T tokens, then the dimensions of a token; rows are split by the first dimension.
Source: AutoDDL, sections 4.2.2 and 4.3; SUMMA, van de Geijn and Watts, 1997.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import lcm, prod
from typing import TypeGuard

import torch

from collectives import segment
from pipelined.sharding.layout import Layout
from pipelined.sharding.mesh import Mesh
from pipelined.sharding.operators.verbs import Operand, ShardedWeight, Value, Verbs, is_regathered, unshard
from pipelined.sharding.shards import Shards

LEAD = 2
"""Dimensions before those of a token, in a language model: sequences and their tokens."""


@dataclass(frozen=True)
class SplitMatmul:
    """One multiplication.

    Args:
        factors: the ranks that split rows, columns and the contraction: p0, p1, p2.
        inputs: the dimensions of a token before, the first of which is split: (C,), or (H, C/H) by heads.
        outputs: the dimensions of a token after it.
        cut: the dimension of the outputs that is split: 1 of (3, H, C/H).
    """

    factors: tuple[int, int, int]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    cut: int = 0

    @cached_property
    def mesh(self) -> Mesh:
        rows, columns, contraction = self.factors
        return Mesh(f"rows={rows} contraction={contraction} columns={columns}")

    def input_shards(self, lead: tuple[int, ...]) -> Shards:
        """The input as other operators leave it, split over all ranks; lead: the lengths before a token's, (B, T)."""
        split = f"S0:rows S{len(lead)}:contraction S{len(lead)}:columns"
        return Shards(self.mesh, lead + self.inputs, split)

    def gathered_input(self, lead: tuple[int, ...]) -> Shards:
        """The input I."""
        return Shards(self.mesh, lead + self.inputs, f"S0:rows S{len(lead)}:contraction")

    def partial_output(self, lead: tuple[int, ...]) -> Shards:
        """The output O."""
        split = f"S0:rows S{len(lead) + self.cut}/{self.factors[2]}:columns P:contraction"
        return Shards(self.mesh, lead + self.outputs, split)

    def output_shards(self, lead: tuple[int, ...]) -> Shards:
        """The output, split over all ranks."""
        dimension = len(lead) + self.cut
        return Shards(self.mesh, lead + self.outputs, f"S0:rows S{dimension}:contraction S{dimension}:columns")

    @cached_property
    def weight(self) -> Shards:
        """The weight, (inputs, outputs)."""
        columns = f"S{len(self.inputs) + self.cut}/{self.factors[2]}:columns"
        return Shards(self.mesh, self.inputs + self.outputs, f"S0:contraction {columns}")

    @cached_property
    def bias(self) -> Shards:
        """The bias, laid as the columns of the output that leaves."""
        return Shards(self.mesh, self.outputs, f"S{self.cut}:contraction S{self.cut}:columns")

    @cached_property
    def table(self) -> Shards:
        """The weight transposed, (outputs, inputs), as torch's Linear, a head and its embedding have it."""
        split = f"S{self.cut}/{self.factors[2]}:columns S{len(self.outputs)}:contraction"
        return Shards(self.mesh, self.outputs + self.inputs, split)

    @cached_property
    def panels(self) -> "list[Panel]":
        """The panels of the loop; one where a side has one rank, or where ranks cannot have equal shares.

        There are max(p0, p1), so that a gathered panel is no larger than what ranks hold of I, or of W. They cut the
        last of the inputs' dimensions: the numbers of a head, or of a block where ranks hold whole blocks of I and W.
        """
        (rows, columns, contraction), (*heads, last) = self.factors, self.inputs
        blocks = 1 if heads else lcm(rows, columns) * contraction
        block, remainder = divmod(last, blocks)
        if 1 in (rows, columns) or remainder or not block:
            return [Panel(self, last, 0, last)]
        count = min(max(rows, columns), block)
        spans = (segment(block, count, index) for index in range(count))
        return [Panel(self, block, low, high) for low, high in spans]


@dataclass(frozen=True)
class Panel:
    """Some numbers of a multiplication's contraction.

    Args:
        whole: the multiplication.
        block: the numbers of a head, or of a block.
        low, high: those of each block that the panel has.
    """

    whole: SplitMatmul
    block: int
    low: int
    high: int

    @cached_property
    def operator(self) -> SplitMatmul:
        """The multiplication of these numbers alone."""
        *heads, last = self.whole.inputs
        return replace(self.whole, inputs=(*(heads or [last // self.block]), self.high - self.low))

    def view(self, tensor: torch.Tensor, dimension: int) -> torch.Tensor:
        """A view of these numbers, in a rank's piece of a tensor whose inputs begin with this dimension."""
        if len(self.whole.inputs) == 1:
            tensor = tensor.unflatten(dimension, (-1, self.block))
        last = dimension + len(self.operator.inputs) - 1
        return tensor.narrow(last, self.low, self.high - self.low)

    def cut_weight(self, weight: ShardedWeight, transposed: bool) -> ShardedWeight:
        """These numbers of a weight that is sharded, or of a transposed one."""
        rows = self.view(weight.piece, len(self.whole.outputs) if transposed else 0)
        return ShardedWeight.of(
            rows, sharded_weight(_weight_shards(self.operator, transposed)), weight.name, regather=weight.regather
        )


def sharded_weight(piece: Shards) -> Shards:
    """How a weight lies where the p0 ranks that compute with one piece of it store parts of it."""
    cuts = piece.layout.cuts
    return Shards(piece.mesh, piece.lengths, Layout.of({**cuts, 0: (*cuts.get(0, ()), "rows")}))


async def multiply(
    verbs: Verbs,
    operator: SplitMatmul,
    x: Value,
    weight: Operand,
    bias: Operand | None = None,
    *,
    transposed: bool = False,
) -> Value:
    """The product, split over all ranks, plus a bias.

    Args:
        x: (*lead, *inputs), split over all ranks of any mesh, or whole on all of them.
        weight, bias: this rank's pieces, of `operator.weight` and `operator.bias`; or a `sharded_weight` of the weight.
        transposed: the weight is of `operator.table`.
    Cost: (p1-1)/p1 · mk/(p0·p2) + (p2-1)/p2 · mn/(p0·p1) elements for m tokens of k numbers before and n behind it, and
    the same in the backward; the gathered input is kept for that. If the weight is sharded, p0 ranks also gather
    (p0-1)/p0 · kn/(p1·p2) elements each way and scatter as many of its gradient, and the input is gathered each way;
    the pieces of I and W that are gathered at a time are mk/(p0·p2·s) + kn/(p1·p2·s), of s panels.
    """
    lead = x.shards.lengths[: -len(operator.inputs)]
    if is_looped(weight, operator):
        product = await _loop(verbs, operator, x, weight, transposed)
    else:
        regather = is_regathered(weight)
        x = await gather(verbs, x, operator.input_shards(lead), operator.gathered_input(lead), regather=regather)
        whole = await unshard(verbs, weight, _weight_shards(operator, transposed))
        work = partial(multiply_pieces, inner=len(operator.inputs), transposed=transposed)
        product = await verbs.compute("multiply", work, x, whole, result=operator.partial_output(lead))
    product = await verbs.move(product, operator.output_shards(lead))
    if bias is None:
        return product
    return await verbs.compute("bias", torch.add, product, bias, result=product.shards)


def is_looped(weight: Operand, operator: SplitMatmul) -> TypeGuard[ShardedWeight]:
    """Whether what takes this weight goes panel by panel."""
    return is_regathered(weight) and len(operator.panels) > 1


async def _loop(verbs: Verbs, operator: SplitMatmul, x: Value, weight: ShardedWeight, transposed: bool) -> Value:
    """The sum of the panels' products. A sum is freed behind the next one, which does not need it for its backward."""
    lead = x.shards.lengths[: -len(operator.inputs)]
    x, sums = await verbs.move(x, operator.input_shards(lead)), tuple[Value, ...]()
    for panel in operator.panels:
        part = panel.operator
        is_last = panel is operator.panels[-1]
        cut = partial(panel.view, dimension=len(lead))
        columns = await verbs.compute("panel", cut, x, result=part.input_shards(lead))
        columns = await verbs.move(columns, part.gathered_input(lead), regather=True)
        rows = await unshard(verbs, panel.cut_weight(weight, transposed), _weight_shards(part, transposed))
        work = partial(_add, inner=len(part.inputs), transposed=transposed)
        result = operator.partial_output(lead)
        sums = (await verbs.compute("multiply", work, columns, rows, *sums, result=result, summand=not is_last),)
    return sums[0]


def _weight_shards(operator: SplitMatmul, transposed: bool) -> Shards:
    return operator.table if transposed else operator.weight


async def gather(
    verbs: Verbs, x: Value, input_shards: Shards, gathered_input: Shards, *, regather: bool = False
) -> Value:
    """An operator's input: to its mesh first, where it is split, then over the ranks that gather it.

    Args:
        regather: of the gathering, see `Verbs.move`.
    """
    if not x.shards.is_uniform:
        x = await verbs.move(x, input_shards)
    return await verbs.move(x, gathered_input, regather=regather)


def multiply_pieces(x: torch.Tensor, weight: torch.Tensor, inner: int = 1, transposed: bool = False) -> torch.Tensor:
    """The product over the last dimensions of x; sizes of 0 are allowed.

    Args:
        weight: begins with these dimensions; a transposed one ends with them.
        inner: their number.
    """
    lead = x.shape[:-inner]
    contraction = prod(x.shape[-inner:])
    outputs = weight.shape[:-inner] if transposed else weight.shape[inner:]
    if transposed:
        matrix = weight.reshape(prod(outputs), contraction).t()
    else:
        matrix = weight.reshape(contraction, prod(outputs))
    return (x.reshape(prod(lead), contraction) @ matrix).view(lead + outputs)


def _add(x: torch.Tensor, weight: torch.Tensor, *sums: torch.Tensor, inner: int, transposed: bool) -> torch.Tensor:
    product = multiply_pieces(x, weight, inner, transposed)
    return product if not sums else sums[0] + product
