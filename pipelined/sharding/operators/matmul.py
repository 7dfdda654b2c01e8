"""The matrix multiplication over p0·p1·p2 ranks: rows, columns and the contraction are split.

    I (S0:p0, B:p1, S1:p2) · W (B:p0, S1:p1, S0:p2) = O (S0:p0, S1:p1, P:p2)

Between operators activations are split over all ranks: rank q of a row of ranks holds column block q. Ranks stand in
the order rows, contraction, columns, so q = c · p1 + b for rank c of the contraction and rank b of the columns. So I is
gathered over p1 from neighbours to contiguous columns, and O is reduced and scattered over p2 to column block q, where
W's columns are the blocks c · p1 + b for every c. Nothing is permuted.

Shapes: a lead, such as B sequences of T tokens, then the dimensions of a token; rows are split by the first dimension.
Source: AutoDDL, sections 4.2.2 and 4.3.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from math import prod

import torch

from pipelined.sharding.mesh import Mesh
from pipelined.sharding.operators.verbs import Operand, Reader, Value, is_gathered_again, whole_piece
from pipelined.sharding.shards import Shards

LEAD = 2
"""Dimensions before those of a token, in a language model: sequences and their tokens."""


@dataclass(frozen=True)
class SplitMatmul:
    """One multiplication.

    Args:
        factors: the ranks that split rows, columns and the contraction: p0, p1, p2.
        inputs: the dimensions of a token before, the first of which is split: (C,), or (H, C/H) by heads.
        outputs: the dimensions of a token behind it.
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

    def arriving(self, lead: tuple[int, ...]) -> Shards:
        """The input as other operators leave it, split over all ranks; lead: the lengths before a token's, (B, T)."""
        split = f"S0:rows S{len(lead)}:contraction S{len(lead)}:columns"
        return Shards(self.mesh, lead + self.inputs, split)

    def gathered(self, lead: tuple[int, ...]) -> Shards:
        """The input I."""
        return Shards(self.mesh, lead + self.inputs, f"S0:rows S{len(lead)}:contraction")

    def partial(self, lead: tuple[int, ...]) -> Shards:
        """The output O."""
        split = f"S0:rows S{len(lead) + self.cut}/{self.factors[2]}:columns P:contraction"
        return Shards(self.mesh, lead + self.outputs, split)

    def leaving(self, lead: tuple[int, ...]) -> Shards:
        """The output, split over all ranks."""
        at = len(lead) + self.cut
        return Shards(self.mesh, lead + self.outputs, f"S0:rows S{at}:contraction S{at}:columns")

    @cached_property
    def weight(self) -> Shards:
        """The weight, (inputs, outputs)."""
        columns = f"S{len(self.inputs) + self.cut}/{self.factors[2]}:columns"
        return Shards(self.mesh, self.inputs + self.outputs, f"S0:contraction {columns}")

    @cached_property
    def bias(self) -> Shards:
        """The bias, laid as the columns of the output that leaves."""
        return Shards(self.mesh, self.outputs, f"S{self.cut}:contraction S{self.cut}:columns")


async def multiply(run: Reader, operator: SplitMatmul, x: Value, weight: Operand, bias: Operand | None = None) -> Value:
    """The product, split over all ranks, plus a bias.

    Args:
        x: (*lead, *inputs), split over all ranks of any mesh, or whole on all of them.
        weight, bias: this rank's pieces, of `operator.weight` and `operator.bias`.
    Cost: (p1-1)/p1 · mk/(p0·p2) + (p2-1)/p2 · mn/(p0·p1) elements for m tokens of k numbers before and n behind it, and
    the same in the backward; the gathered input is kept for that. Of a weight that is stored in parts, p0 ranks gather
    (p0-1)/p0 · kn/(p1·p2) elements each way and scatter as many of its gradient, and the input is gathered each way.
    """
    inner = len(operator.inputs)
    lead = x.shards.lengths[:-inner]
    again = is_gathered_again(weight)
    x = await gather(run, x, operator.arriving(lead), operator.gathered(lead), again=again)
    work, weight = partial(multiplied, inner=inner), await whole_piece(run, weight, operator.weight)
    product = await run.compute("multiply", work, x, weight, result=operator.partial(lead))
    product = await run.move(product, operator.leaving(lead))
    if bias is None:
        return product
    return await run.compute("bias", torch.add, product, bias, result=product.shards)


async def gather(run: Reader, x: Value, arriving: Shards, gathered: Shards, *, again: bool = False) -> Value:
    """An operator's input: to its mesh first, where it is split, then over the ranks that gather it.

    Args:
        again: of the gathering, see `Reader.move`.
    """
    if not x.shards.is_uniform:
        x = await run.move(x, arriving)
    return await run.move(x, gathered, again=again)


def multiplied(x: torch.Tensor, weight: torch.Tensor, inner: int = 1) -> torch.Tensor:
    """The product over the last dimensions of x, with which the weight's begin; sizes of 0 are allowed.

    Args:
        inner: the number of these dimensions.
    """
    lead, contraction, outputs = x.shape[:-inner], prod(weight.shape[:inner]), weight.shape[inner:]
    product = x.reshape(prod(lead), contraction) @ weight.reshape(contraction, prod(outputs))
    return product.view(lead + outputs)
