"""A stage of a swarm that computes with torch, on a CPU or a GPU.

All gradients of a microbatch are computed before any is added to the sums, so a microbatch counts completely or not at
all. Random numbers are keyed by (seed, step, index, place), so that a pass repeated by another peer has the same bits.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from pipelined.programs.updates.exact_grid import Grid
from pipelined.random.keyed_random import KeyedRandom
from pipelined.random.torch_random import TorchRandom
from pipelined.state.tensor_specs import specs_of
from pipelined.swarm.stages.swarm_stage import BackwardResult, Microbatch, NotFinite
from pipelined.swarm.stages.training import ArraySpec, StageTraining, dtype_name
from pipelined.training.optimizer.exact import sum_of_squares
from pipelined.training.stages.stage import backward_root, evaluating
from pipelined.training.sums.grids import GRID, Grids
from transports import Block


class TorchStage:
    """One stage of a training; a `SwarmStage`.

    Its methods block, and must be called one at a time, in a thread of their own if there is an event loop.

    Args:
        training: of all stages.
        index: number of this stage.
        device: "cpu" or "cuda:0".

    Attributes:
        model: digest of the training and of the code that computes it.
        maxima: see `SwarmStage`; with exact sums the largest magnitude of each parameter's gradients.

    Cost: memory of the parameters, their sums and the optimizer's state, once more the parameters' in a backward that
        counts, and one forward's activations.
    """

    def __init__(self, training: StageTraining, index: int, device: torch.device | str = "cpu"):
        self.training = training
        self.index = index
        self.device = torch.device(device)
        self.model = training.digest([sys.modules[__name__]])
        self._module = training.build(index, self.device)
        self._random = TorchRandom(self.device)
        self._parameters = {
            name: parameter for name, parameter in self._module.named_parameters() if parameter.requires_grad
        }
        self._optimizer = training.optimizer(index, self._parameters)
        self._grids = Grids(dict.fromkeys(self._parameters, training.exact_sums))
        self.maxima = len(self._parameters) if training.exact_sums else 0
        self._elements = sum(parameter.numel() for parameter in self._parameters.values())
        dtype = torch.float64 if training.exact_sums else training.dtype
        self._host_sums = torch.zeros(self._elements + self.maxima, dtype=dtype)
        self._sums = self._host_sums.to(self.device)
        self._is_host_stale = False

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == len(self.training.cut) - 1

    @property
    def sums(self) -> np.ndarray:
        """The gradients counted since `clear`, flat, parameter after parameter; then the maxima, if there are any.

        A change of the array counts only after it is assigned, as `stage.sums += more` does.

        Cost: none on a CPU, where it is the sums themselves; a GPU's are copied to the host if they have changed.
        """
        if self._is_host_stale:
            self._host_sums.copy_(self._sums)
            self._is_host_stale = False
        return self._host_sums.numpy()

    @sums.setter
    def sums(self, sums: np.ndarray) -> None:
        self._host_sums.copy_(_tensor(sums))
        self._sums.copy_(self._host_sums)
        self._is_host_stale = False

    def expects(self) -> Sequence[ArraySpec]:
        """See `SwarmStage`."""
        return (self.training.inputs(self.index),)

    def expects_given(self) -> Sequence[ArraySpec]:
        """See `SwarmStage`."""
        return (self.training.targets() if self.is_last else self.training.inputs(self.index + 1),)

    def forward(self, microbatch: Microbatch, inputs: Sequence[Block]) -> Sequence[torch.Tensor]:
        """See `SwarmStage`. Raises ValueError: the inputs are not what it `expects`."""
        with torch.no_grad():
            output = self._output(self._input(inputs), microbatch)
            self._refuse_not_finite("outputs", microbatch, [output])
            return (output.cpu(),)

    def backward(
        self, microbatch: Microbatch, inputs: Sequence[Block], given: Sequence[Block], count: bool
    ) -> BackwardResult:
        """See `SwarmStage`; the loss is the mean loss of the rows, times their number.

        Raises:
            ValueError: the arrays are not what it `expects`; nothing was counted.
        """
        what = "labels" if self.is_last else "gradients"
        x = self._input(inputs)
        target = self._single_tensor(given, self.expects_given(), what)
        sources: list[torch.Tensor] = [*self._parameters.values()] if count else []
        if not self.is_first:
            sources.insert(0, x.requires_grad_())
        if self.is_last:
            self.training.check_ids(target, f"{what} at stage {self.index}")
        output = self._output(x, microbatch)
        root = self._loss(output, target) if self.is_last else backward_root([(output, target)])
        gradients = list(torch.autograd.grad(root, sources)) if sources else []
        self._refuse_not_finite("loss or gradients", microbatch, [root if self.is_last else output, *gradients])
        input_gradients = [] if self.is_first else [gradients.pop(0).cpu()]
        self._count(gradients)
        return BackwardResult(input_gradients, float(root.detach()) if self.is_last else None)

    @torch.no_grad()
    def evaluate(self, inputs: Sequence[Block], labels: Sequence[Block] = ()) -> Sequence[torch.Tensor]:
        """See `SwarmStage`.

        Raises:
            ValueError: the arrays are not what it `expects`, or labels were given to a stage before the last.
        """
        if self.is_last != bool(labels):
            raise ValueError(f"labels are for the last stage alone (stage: {self.index}, arrays: {len(labels)})")
        with evaluating(self._module), self._precision():
            output = self._module(self._input(inputs)).to(self.training.dtype)
        if self.is_last:
            targets = self._labels(labels)
            losses = [self.training.loss(output[row : row + 1], targets[row : row + 1]) for row in range(len(targets))]
            output = torch.stack(losses).double()
        if not output.isfinite().all():
            raise NotFinite(f"validation data comes to nothing finite at stage {self.index}")
        return (output.cpu(),)

    def clear(self) -> None:
        """Set the sums to zero."""
        self._sums.zero_()
        self._is_host_stale = True

    def fits(self, total: np.ndarray) -> bool:
        """See `SwarmStage`: with exact sums, every gradient that was counted fits the grid of its parameter."""
        return all(self._grids.holds(name, largest) for name, largest in self._largest_magnitudes(total).items())

    def square(self, total: np.ndarray) -> float:
        """See `SwarmStage`; the same bits on every processor."""
        return sum_of_squares(self._rounded_gradients(total))

    def apply(self, step: int, total: np.ndarray, scale: float) -> None:
        """Update every parameter at the rate of this step, as the training's optimizer does.

        Args:
            total: with the layout of `sums`.
            scale: factor of the gradient: one over the batch's rows, times the clip's factor; 0: set the grids alone.
        Raises:
            ValueError: the total is not of these parameters; nothing was changed.
        """
        if total.shape != self._sums.shape or total.dtype.name != dtype_name(self._sums.dtype):
            own_spec = f"{dtype_name(self._sums.dtype)} {tuple(self._sums.shape)}"
            raise ValueError(f"a total of another stage (got: {total.dtype.name} {total.shape}, expected: {own_spec})")
        self._grids.adopt(self._largest_magnitudes(total))
        if scale:
            self._optimizer.apply(
                step, [part.to(self.device) * scale for part in self._parameter_views(self._rounded_gradients(total))]
            )

    def parts(self, flat: np.ndarray) -> Mapping[str, torch.Tensor]:
        """See `SwarmStage`."""
        return dict(zip(self._parameters, self._parameter_views(_tensor(flat)), strict=True))

    def state(self) -> Mapping[str, torch.Tensor]:
        """See `StageOptimizer.state`. On a CPU these may be the tensors themselves, which the next `apply` changes.

        With exact sums also the spacing of each parameter's grid as NAME/grid, 0 before the first sum.
        """
        spacings = {name: self._grids[name].spacing if name in self._grids else 0.0 for name in self._parameters}
        grids = {f"{name}/{GRID}": torch.tensor(spacing, dtype=torch.float64) for name, spacing in spacings.items()}
        return {**self._optimizer.state(), **(grids if self.maxima else {})}

    def load(self, state: Mapping[str, Block]) -> None:
        """See `SwarmStage`."""
        blocks = {name: Block.of(value) for name, value in state.items()}
        _refuse_other_state(
            {name: (block.dtype, block.shape) for name, block in blocks.items()}, specs_of(self.state())
        )
        tensors = {name: _tensor(block) for name, block in blocks.items()}
        self._optimizer.load(tensors)
        spacings = {name: float(tensors[f"{name}/{GRID}"]) for name in (self._parameters if self.maxima else ())}
        self._grids.clear()
        self._grids.update({name: Grid.with_spacing(spacing) for name, spacing in spacings.items() if spacing})

    def _labels(self, labels: Sequence[Block]) -> torch.Tensor:
        """Labels of the whole microbatch, or of its first rows."""
        ((dtype, shape),) = self.expects_given()
        rows = max((1,), min(shape[:1], Block.of(labels[0]).shape[:1]))
        targets = self._single_tensor(labels, [(dtype, rows + shape[1:])], "labels")
        self.training.check_ids(targets, f"labels at stage {self.index}")
        return targets

    def _input(self, inputs: Sequence[Block]) -> torch.Tensor:
        x = self._single_tensor(inputs, self.expects(), "inputs")
        if self.is_first:
            self.training.check_ids(x, f"inputs at stage {self.index}")
        return x

    def _single_tensor(self, blocks: Sequence[Block], specs: Sequence[ArraySpec], what: str) -> torch.Tensor:
        """The one tensor of the blocks, on this device; blocks may also be arrays or tensors."""
        received = [Block.of(block) for block in blocks]
        if [(block.dtype, block.shape) for block in received] != list(specs):
            received_text = ", ".join(f"{block.dtype} {block.shape}" for block in received) or "nothing"
            expected_text = ", ".join(f"{dtype} {shape}" for dtype, shape in specs)
            raise ValueError(
                f"unexpected {what} at stage {self.index} (got: {received_text}, expected: {expected_text})"
            )
        return _tensor(received[0]).to(self.device)

    def _refuse_not_finite(self, what: str, microbatch: Microbatch, tensors: Sequence[torch.Tensor]) -> None:
        """Raises NotFinite. Checks only each tensor's sum: one value that is not finite makes it not finite."""
        if not torch.stack([tensor.detach().sum().double() for tensor in tensors]).isfinite().all():
            fact = f"step: {microbatch.step}, microbatch: {microbatch.index}"
            raise NotFinite(f"{what} at stage {self.index} that are not finite ({fact})")

    def _output(self, x: torch.Tensor, microbatch: Microbatch) -> torch.Tensor:
        random = KeyedRandom(self.training.seed, microbatch.step, microbatch.index)
        with self._precision():
            output = self._random.run(partial(self._module, x), random, f"stage {self.index}")
            return output.to(self.training.dtype)

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.training.loss(logits, labels) * self.training.rows

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.training.autocast else nullcontext()

    def _count(self, gradients: Sequence[torch.Tensor]) -> None:
        if not gradients:
            return
        pieces = self._parameter_views(self._sums)
        if self.maxima:
            summands = zip(self._parameters, gradients, pieces, strict=True)
            largest = [self._grids.add(name, gradient, piece.view(-1)) for name, gradient, piece in summands]
            maxima = self._sums[self._elements :]
            torch.maximum(maxima, torch.tensor(largest, dtype=maxima.dtype, device=maxima.device), out=maxima)
        else:
            for piece, gradient in zip(pieces, gradients, strict=True):
                piece.add_(gradient)
        self._is_host_stale = True

    def _rounded_gradients(self, total: np.ndarray) -> torch.Tensor:
        """The gradients of a total, in the dtype of the parameters."""
        return _tensor(total)[: self._elements].to(self.training.dtype)

    def _largest_magnitudes(self, total: np.ndarray) -> dict[str, float]:
        """The largest magnitude of each parameter's gradients in a total; without exact sums none."""
        return dict(zip(self._parameters, total[self._elements :].tolist(), strict=False))

    def _parameter_views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Views of a flat tensor, one of each parameter's shape."""
        values = self._parameters.values()
        pieces = flat[: self._elements].split([value.numel() for value in values])
        return [piece.view_as(value) for piece, value in zip(pieces, values, strict=True)]


def _tensor(array: np.ndarray | Block) -> torch.Tensor:
    """A tensor that views the array; a read-only one is copied, because torch has no read-only tensors."""
    block = Block.of(array)
    if block.data.readonly:
        block = Block(block.dtype, block.shape, memoryview(bytearray(block.data)))
    return block.torch()


def _refuse_other_state(specs: Mapping[str, Any], own_specs: Mapping[str, Any]) -> None:
    differing = sorted(name for name in {*specs, *own_specs} if specs.get(name) != own_specs.get(name))
    if differing:
        name = differing[0]
        fact = f"{name}: {specs.get(name, 'missing')} given, {own_specs.get(name, 'none')} here"
        raise ValueError(
            f"a state of another stage ({fact}; tensors that differ: {len(differing)} of {len(own_specs)})"
        )
