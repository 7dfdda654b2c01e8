"""The operations, activations and messages of a row of layers, by layer: measured, mostly on the meta device.

On the meta device tensors have shapes and no values, so this takes no memory and almost no time. Autocast leaves that
device alone: with it tensors without values name the CPU, as torch's compiler has them. Layers that need values are run
on the host instead.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from pipelined.training.exchange.parcels import Tree, tensors_of
from pipelined.training.job.module_tensors import with_copied_buffers

Storages = Mapping[int, int]
"""The bytes of each storage, by its number; two tensors may share one."""


@dataclass(frozen=True)
class LayerSizes:
    """One layer's forward of one microbatch.

    Args:
        operations: floating-point operations.
        takes: the input; tensors without values, on the meta device.
        given: the storages of the output.
        kept: the storages that the backward needs, without parameters and buffers.
    """

    operations: float
    takes: Tree
    taken: Storages
    given: Storages
    kept: Storages


def measured_sizes(parts: Sequence[nn.Module], inputs: Tree, loss: Callable[[Tree], Any]) -> list[LayerSizes]:
    """Run one microbatch through layers.

    Args:
        parts: the layers, each built alone, on the device of the inputs.
        loss: the loss of the last layer's output; what it keeps counts as the last layer's.
    Raises:
        Exception: as a layer raises it.
    """
    storages = _StorageNumbers()
    sizes = list[LayerSizes]()
    x = inputs
    for layer, part in enumerate(parts):
        kept: dict[int, int] = {}
        state_storages = storages.of([*part.parameters(), *part.buffers()])
        takes = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to("meta"), x)
        taken = storages.of(tensors_of(x))
        with FlopCounterMode(display=False) as counter, storages.noting(kept), with_copied_buffers(part):
            x = part(x)
            if layer == len(parts) - 1:
                loss(x)
        kept = {name: nbytes for name, nbytes in kept.items() if name not in state_storages}
        sizes.append(LayerSizes(float(counter.get_total_flops()), takes, taken, storages.of(tensors_of(x)), kept))
    return sizes


def sizes_in_autocast(
    parts: Sequence[nn.Module], inputs: Tree, targets: Tree, loss: Callable[[Tree, Tree], Any], dtype: torch.dtype
) -> list[LayerSizes]:
    """As `measured_sizes`, under autocast as the CPU has it; the loss is computed without it.

    Args:
        parts, inputs, targets: all on the meta device, or all on the CPU.
    Cost: on the meta device a second of CPU for what torch imports.
    """

    def exactly(output: Tree) -> Any:
        with torch.autocast("cpu", enabled=False):
            return loss(output, targets)

    with torch.autocast("cpu", dtype):
        if all(tensor.device.type == "cpu" for tensor in tensors_of(inputs)):
            return measured_sizes(parts, inputs, exactly)
        from torch._subclasses.fake_tensor import FakeTensorMode

        def named(tensor: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(tensor, device="cpu")

        with FakeTensorMode(allow_non_fake_inputs=True):
            parts = [part._apply(named) for part in parts]
            inputs, targets = (tree_map_only(torch.Tensor, named, each) for each in (inputs, targets))
            sizes = measured_sizes(parts, inputs, exactly)
    return [replace(size, takes=tree_map_only(torch.Tensor, _on_meta, size.takes)) for size in sizes]


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def optimizer_bytes(part: nn.Module, build: Callable[[dict[str, nn.Parameter]], Optimizer]) -> dict[str, int]:
    """Bytes that an optimizer keeps for each trained parameter after its first update, by name. It changes these."""
    trained = {name: parameter for name, parameter in part.named_parameters() if parameter.requires_grad}
    if not trained:
        return {}
    optimizer = build(trained)
    for parameter in trained.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return {
        name: sum(one.nbytes for one in optimizer.state.get(parameter, {}).values() if isinstance(one, torch.Tensor))
        for name, parameter in trained.items()
    }


class _StorageNumbers:
    """Numbers of storages. Every tensor that was asked for is kept, so that no other gets its storage."""

    def __init__(self) -> None:
        self._held: list[torch.Tensor] = []

    def of(self, tensors: Sequence[torch.Tensor]) -> dict[int, int]:
        self._held += tensors
        storages = [tensor.untyped_storage() for tensor in tensors]
        return {storage._cdata: storage.nbytes() for storage in storages}

    @contextmanager
    def noting(self, kept: dict[int, int]) -> Iterator[None]:
        """Inside the `with` block note the storage of each tensor that is kept for a backward."""

        def note(tensor: torch.Tensor) -> torch.Tensor:
            kept.update(self.of([tensor]))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            yield
