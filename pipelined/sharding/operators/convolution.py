"""The convolution over p0·p1·p2 ranks: a multiplication for each place of its kernel, whose rows are images and places.

    I (S0:p0, B:p1, S1:p2) * W (B:p0, S0:p1, S1:p2) = O (S0:p0, S1:p1, P:p2)

Images are split whole, so no rank needs the border of another's. Channels are split as columns are: see `matmul`.

Shapes: B images, I input and O output channels, then the places, one to three dimensions.
Source: AutoDDL, section 4.2.1, without the exchange of borders.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch.nn import functional

from pipelined.sharding.mesh import Mesh
from pipelined.sharding.operators.matmul import gather
from pipelined.sharding.operators.verbs import Operand, Value, Verbs
from pipelined.sharding.shards import Shards

CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
"""By the number of a place's dimensions."""


@dataclass(frozen=True)
class SplitConvolution:
    """One convolution, of one group of channels.

    Args:
        factors: the ranks that split images, output channels and input channels: p0, p1, p2.
        inputs, outputs: channels.
        kernel, stride, padding, dilation: as torch's.
    """

    factors: tuple[int, int, int]
    inputs: int
    outputs: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]

    @cached_property
    def mesh(self) -> Mesh:
        rows, columns, contraction = self.factors
        return Mesh(f"rows={rows} contraction={contraction} columns={columns}")

    @cached_property
    def weight(self) -> Shards:
        """The weight, (O, I, *kernel)."""
        shape = (self.outputs, self.inputs, *self.kernel)
        return Shards(self.mesh, shape, f"S0/{self.factors[2]}:columns S1:contraction")

    @cached_property
    def bias(self) -> Shards:
        """The bias, (O,)."""
        return Shards(self.mesh, (self.outputs,), "S0:contraction S0:columns")

    def stream_shards(self, shape: tuple[int, ...]) -> Shards:
        """The input (B, I, *places) as other operators leave it, and the output as it leaves: split over all ranks."""
        return Shards(self.mesh, shape, "S0:rows S1:contraction S1:columns")

    def gathered_input(self, shape: tuple[int, ...]) -> Shards:
        """The input I."""
        return Shards(self.mesh, shape, "S0:rows S1:contraction")

    def partial_output(self, shape: tuple[int, ...]) -> Shards:
        """The output O, of shape (B, O, *places)."""
        return Shards(self.mesh, shape, f"S0:rows S1/{self.factors[2]}:columns P:contraction")

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the output for that of an input."""
        x, weight = (torch.empty(size, device="meta") for size in (shape, self.weight.lengths))
        return tuple(self.convolve_piece(x, weight).shape)

    def convolve_piece(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The convolution of pieces of input and weight."""
        work = CONVOLUTIONS[len(self.kernel)]
        return work(x, weight, None, self.stride, self.padding, self.dilation)


async def convolve(
    verbs: Verbs, operator: SplitConvolution, x: Value, weight: Operand, bias: Operand | None = None
) -> Value:
    """The convolution, split over all ranks, plus a bias.

    Args:
        x: (B, I, *places), split over all ranks of any mesh, or whole on all of them.
        weight, bias: this rank's pieces, of `operator.weight` and `operator.bias`.
    Cost: with i input and o output numbers of all images, (p1-1)/p1 · i/(p0·p2) + (p2-1)/p2 · o/(p0·p1)
    elements, and the same in the backward; the gathered input is kept for that.
    """
    shape = x.shards.lengths
    x = await gather(verbs, x, operator.stream_shards(shape), operator.gathered_input(shape))
    output = operator.output_shape(shape)
    result = operator.partial_output(output)
    product = await verbs.compute("convolve", operator.convolve_piece, x, weight, result=result)
    product = await verbs.move(product, operator.stream_shards(output))
    if bias is None:
        return product
    return await verbs.compute("bias", _add_bias, product, bias, result=product.shards)


def _add_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x + bias.view(-1, *[1] * (x.dim() - 2))
