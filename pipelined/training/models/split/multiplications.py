"""Layers with factors: Linear, convolutions and Embedding, each split by rows, columns and contraction."""

from abc import abstractmethod

from torch import nn

from pipelined.errors import UsageError
from pipelined.sharding import Shards
from pipelined.sharding.factors import Factors
from pipelined.sharding.operators.convolution import SplitConvolution, convolve
from pipelined.sharding.operators.matmul import SplitMatmul, multiply
from pipelined.sharding.operators.verbs import Value
from pipelined.sharding.operators.vocabulary import embed
from pipelined.training.models.split.layer import ForwardPass, Pieces, SplitLayer, SplitPart


class Multiplication(SplitLayer):
    """A layer with factors.

    Args:
        factors: of rows, columns and contraction.
    """

    def __init__(self, name: str, module: nn.Module, factors: Factors):
        p0, p1, p2 = factors
        super().__init__(name, module, p0 * p1 * p2)
        self.row_shards = p0
        self.split_text = f"{p0}.{p1}.{p2}"

    def parts(self) -> list[SplitPart]:
        return [SplitPart(lambda x: x if x.is_uniform else self.input_shards(x.lengths), self.forward)]

    @abstractmethod
    def input_shards(self, lengths: tuple[int, ...]) -> Shards:
        """How an input of this shape enters, split over all ranks."""


class SplitLinear(Multiplication):
    """A Linear of any lead: rows are split by the first dimension, columns are outputs."""

    module: nn.Linear

    def __init__(self, name: str, module: nn.Module, factors: Factors):
        super().__init__(name, module, factors)
        self.operator = SplitMatmul(factors, (self.module.in_features,), (self.module.out_features,))

    def input_shards(self, lengths: tuple[int, ...]) -> Shards:
        return self.operator.input_shards(lengths[:-1])

    def parameters(self) -> dict[str, Shards]:
        bias = {} if self.module.bias is None else {"bias": self.operator.bias}
        return {"weight": self.operator.table, **bias}

    async def forward(self, forward_pass: ForwardPass, x: Value, pieces: Pieces) -> Value:
        return await multiply(
            forward_pass.verbs, self.operator, x, pieces["weight"], pieces.get("bias"), transposed=True
        )


class SplitConv(Multiplication):
    """A convolution of one group: rows are images, columns the output channels, the contraction the input channels."""

    module: nn.Conv1d | nn.Conv2d | nn.Conv3d

    def __init__(self, name: str, module: nn.Module, factors: Factors):
        super().__init__(name, module, factors)
        conv, (_, columns, contraction) = self.module, factors
        sides = ("output", columns * contraction, conv.out_channels), ("input", contraction, conv.in_channels)
        for side, shards, channels in sides:
            if shards > channels:
                fact = f"more shards than {side} channels (layer {name}, shards: {shards}, channels: {channels})"
                raise UsageError(f"{fact}; split the rows further")
        sizes = conv.kernel_size, conv.stride, conv.padding, conv.dilation
        self.operator = SplitConvolution(factors, conv.in_channels, conv.out_channels, *sizes)

    def input_shards(self, lengths: tuple[int, ...]) -> Shards:
        if len(lengths) != (needed := 2 + len(self.module.kernel_size)):
            fact = f"layer {self.name} ({self.kind}) takes rows for channels (dimensions: {len(lengths)}, with rows"
            raise UsageError(f"{fact}: {needed}); give it {needed}, or use tensor 1")
        return self.operator.stream_shards(lengths)

    def parameters(self) -> dict[str, Shards]:
        bias = {} if self.module.bias is None else {"bias": self.operator.bias}
        return {"weight": self.operator.weight, **bias}

    async def forward(self, forward_pass: ForwardPass, x: Value, pieces: Pieces) -> Value:
        self.input_shards(x.shards.lengths)  # which refuses an input without rows
        return await convolve(forward_pass.verbs, self.operator, x, pieces["weight"], pieces.get("bias"))


class SplitEmbedding(Multiplication):
    """An Embedding: its matrix lies as that of a Linear to the vocabulary, with which it may be tied."""

    module: nn.Embedding

    def __init__(self, name: str, module: nn.Module, factors: Factors):
        super().__init__(name, module, factors)
        self.operator = SplitMatmul(factors, (self.module.embedding_dim,), (self.module.num_embeddings,))

    def input_shards(self, lengths: tuple[int, ...]) -> Shards:
        return Shards(self.operator.mesh, lengths, "S0:rows")

    def parameters(self) -> dict[str, Shards]:
        return {"weight": self.operator.table}

    async def forward(self, forward_pass: ForwardPass, x: Value, pieces: Pieces) -> Value:
        ids = await forward_pass.verbs.move(x, self.input_shards(x.shards.lengths))
        return await embed(forward_pass.verbs, self.operator, ids, pieces["weight"])
