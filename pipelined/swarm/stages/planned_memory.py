"""The bytes that a peer is planned to hold for its stage, for the error that ends it where memory runs out.

A stage is built on the meta device, and passes a microbatch forward and backward as tensors without values that name
the CPU: so all is counted that autocast, dropout and the backward keep, and no memory is taken.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipelined.swarm.stages.training import ArraySpec, StageTraining
from pipelined.training.optimizer.exact import PIECE

SQUARED_BYTES = 2 * torch.float64.itemsize
"""Bytes for each number of a piece, while a norm squares it."""


class HeldBytes(NamedTuple):
    """Bytes of one stage.

    Args:
        state: of its parameters and buffers, and of what the optimizer keeps.
        passing: of a microbatch at its fullest: activations, and gradients in a backward.
        gradients: as many as the trained parameters.
        sums: of a step's gradients; a total has as many.
        norm: of a norm: squares, in pieces, and with exact sums the rounded gradients.
    """

    state: int
    passing: int
    gradients: int
    sums: int
    norm: int

    def most_bytes(self, *, delayed: bool, saves: bool, on_host: bool) -> int:
        """Bytes of a peer at its fullest, without what it keeps for peers that join.

        It computes with one microbatch at a time. Beside the sums it has the total of the last step, and in a round
        that of the next with what it owes others of it: all, where it is alone at its stage. Delayed updates keep state
        and sums of a second step, and a copy of the sums in a round, which takes place beside all other work; a change
        between the steps copies state and sums once more.

        Args:
            saves: whether a copy of the state is being written.
            on_host: whether the device's memory is that of the host, where totals and copies are.
        """
        update = max(self.norm, 2 * self.gradients)
        if not on_host:
            return self.state + self.sums + max(self.passing, update)
        step = self.state + self.sums
        held_bytes = step + self.sums + saves * (self.state + delayed * self.sums)
        if delayed:
            return held_bytes + step + 3 * self.sums + max(self.passing, update, step)
        return held_bytes + self.sums + max(self.passing, self.sums + update)


def stage_bytes(training: StageTraining, index: int) -> HeldBytes:
    """The bytes of a stage.

    Raises:
        Exception: as a layer raises it that needs values, or an optimizer that cannot update one parameter of zeros.
    Cost: one pass without values; the first one imports more of torch, for a second or more. An optimizer that needs
        values takes the memory of the largest parameter, of its gradient and of what it keeps for it.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    module = training.build(index, torch.device("meta"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        module = module._apply(lambda tensor: torch.empty_like(tensor, device="cpu"))
        parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        fixed_tensors = [tensor for tensor in [*module.parameters(), *module.buffers()] if not tensor.requires_grad]
        try:
            state = {key: tensor.nbytes for key, tensor in training.optimizer(index, parameters).state().items()}
        except Exception:  # whatever an optimizer raises that needs values
            state = {}
        storages = _StorageCounter([*parameters.values(), *fixed_tensors])
        with storages:
            _run_pass(training, index, module, [*parameters.values()])
    state = state or _state_of_zeros(training, index, parameters)
    numbers = sum(parameter.numel() for parameter in parameters.values())
    exact = bool(training.exact_sums)
    gradients = sum(parameter.nbytes for parameter in parameters.values())
    return HeldBytes(
        state=sum(tensor.nbytes for tensor in fixed_tensors) + sum(state.values()),
        passing=storages.most_bytes,
        gradients=gradients,
        sums=torch.float64.itemsize * (numbers + len(parameters)) if exact else training.dtype.itemsize * numbers,
        norm=SQUARED_BYTES * min(numbers, PIECE) + exact * gradients,
    )


def _state_of_zeros(training: StageTraining, index: int, parameters: Mapping[str, nn.Parameter]) -> dict[str, int]:
    """Bytes by name of an optimizer's state, which it builds for one parameter at a time."""
    state_bytes = dict[str, int]()
    for name, parameter in parameters.items():
        zeros = nn.Parameter(torch.zeros(parameter.shape, dtype=parameter.dtype))
        state = training.optimizer(index, {name: zeros}).state()
        state_bytes |= {key: tensor.nbytes for key, tensor in state.items()}
    return state_bytes


def _run_pass(training: StageTraining, index: int, module: nn.Module, parameters: list[nn.Parameter]) -> Any:
    """Pass a microbatch forward and backward; the result keeps its gradients."""
    x = _empty(training.inputs(index)).requires_grad_(index > 0)
    with torch.autocast("cpu", torch.bfloat16) if training.autocast else nullcontext():
        output = module(x)
    output = output.to(training.dtype)
    is_last = index == len(training.cut) - 1
    target = _empty(training.targets() if is_last else training.inputs(index + 1))
    root = training.loss(output, target) * training.rows if is_last else output
    return torch.autograd.grad(
        root, [*parameters, *([x] if index else [])], None if is_last else target, allow_unused=True
    )


def _empty(spec: ArraySpec) -> torch.Tensor:
    dtype, shape = spec
    return torch.zeros(shape, dtype=getattr(torch, dtype))


class _StorageCounter(TorchDispatchMode):
    """Counts the bytes of the storages of all tensors that are computed.

    Args:
        ignored: tensors that are not counted.

    Attributes:
        most_bytes: at once.
    """

    def __init__(self, ignored: Sequence[torch.Tensor]):
        super().__init__()
        self.most_bytes = 0
        self._storages = dict[int, Any]()
        self._ignored = {tensor.untyped_storage()._cdata for tensor in ignored}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self._storages[storage._cdata] = storage.nbytes(), ref(storage)
        counted = {key: storage for key, storage in self._storages.items() if key not in self._ignored}
        self._storages = {
            key: (nbytes, reference) for key, (nbytes, reference) in counted.items() if reference() is not None
        }
        self.most_bytes = max(self.most_bytes, sum(nbytes for nbytes, _ in self._storages.values()))
        return result
