"""The same GPT-2 blocks by torch's tensor parallelism: DTensor over gloo, as torch's own styles distribute modules.

The blocks are the plain model's own, with `nn.Linear` where it has `Conv1D`, since the styles know no other. A rank's
heads lie side by side in the weight of queries, keys and values, so that it is one multiplication here, too.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from benchmarks.pipelines.blocks import Pair, Whole, Work

COLUMNS, ROWS, NORMS = ("attn.c_attn", "mlp.c_fc"), ("attn.c_proj", "mlp.c_proj"), ("ln_1", "ln_2")
QKV = "attn.c_attn"


def styles(sequence: bool) -> dict[str, ParallelStyle]:
    """How each module of a block is distributed.

    Args:
        sequence: whether the stream between multiplications is split by tokens; else every rank has all of it.
    """
    between = Shard(1) if sequence else Replicate()
    found: dict[str, ParallelStyle] = {name: ColwiseParallel(input_layouts=between) for name in COLUMNS}
    found |= {name: RowwiseParallel(output_layouts=between) for name in ROWS}
    return found | ({name: SequenceParallel() for name in NORMS} if sequence else {})


class DTensorBlocks:
    """The blocks over all ranks of a mesh.

    Args:
        sequence: see `styles`.
    """

    def __init__(self, work: Work, mesh: DeviceMesh, *, sequence: bool):
        self._mesh, self._rank, self._ranks = mesh, mesh.get_rank(), mesh.size()
        self._sequence, self._part = sequence, work.plain()
        for block in self._part.transformer.h.values():
            block.attn.heads //= self._ranks
            for place in (*COLUMNS, *ROWS):
                inner, _, name = place.partition(".")
                setattr(getattr(block, inner), name, self._linear(place, getattr(getattr(block, inner), name)))
        parallelize_module(self._part, mesh, {f"transformer.h.*.{k}": v for k, v in styles(sequence).items()})
        self._x, self._gradient = (self._own(work.stream(name)) for name in ("input", "gradient"))
        self._parameters: Mapping[str, nn.Parameter] = dict(self._part.named_parameters())

    async def step(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None
        self._input = self._x.detach().requires_grad_()
        self._output = self._part(self._input)
        self._output.backward(self._gradient)
        for parameter in self._parameters.values():
            if isinstance(parameter.grad, DTensor) and any(each.is_partial() for each in parameter.grad.placements):
                parameter.grad = parameter.grad.redistribute(placements=[Replicate()])

    def results(self, whole: Whole) -> Iterator[Pair]:
        yield "output", self._output.detach(), self._own(whole.output)
        assert self._input.grad is not None
        yield "input's gradient", self._input.grad, self._own(whole.back)
        for name, parameter in self._parameters.items():
            gradient = parameter.grad
            assert gradient is not None
            found = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            yield name, found, self._arranged(name, whole.gradients[name])

    def _own(self, stream: torch.Tensor) -> torch.Tensor:
        """This rank's tokens of a stream, or all of it."""
        return stream.chunk(self._ranks, 1)[self._rank].contiguous() if self._sequence else stream

    def _linear(self, place: str, plain: nn.Module) -> nn.Linear:
        weight, bias = (self._arranged(f"{place}.{name}", getattr(plain, name)) for name in ("weight", "bias"))
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        return linear

    def _arranged(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """A tensor of the plain model as `nn.Linear` has it; heads of one rank lie side by side."""
        if QKV in name:
            whole = whole.unflatten(-1, (3, self._ranks, -1)).transpose(-3, -2).flatten(-3)
        return whole.t() if whole.dim() == 2 else whole
