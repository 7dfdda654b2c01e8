"""The operations, activations and messages of a row of layers, by layer: measured, mostly on the meta device.

Tensors on the meta device have shapes and no values, so this takes no memory and almost no time. Autocast does not
affect that device: under autocast tensors without values name the CPU, as those of torch's compiler do. Layers that
need values run on the host instead.
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
        input_tree: the input; tensors without values, on the meta device.
        input_storages: the storages of the input.
        output_storages: the storages of the output.
        kept_storages: the storages that the backward needs, without parameters and buffers.
    """

    operations: float
    input_tree: Tree
    input_storages: Storages
    output_storages: Storages
    kept_storages: Storages


def measure_sizes(parts: Sequence[nn.Module], inputs: Tree, loss: Callable[[Tree], Any]) -> list[LayerSizes]:
    """Run one microbatch through layers.

    Args:
        parts: the layers, each built alone, on the device of the inputs.
        loss: the loss of the last layer's output; what it keeps counts as the last layer's.
    Raises:
        Exception: as a layer raises it.
    """
    storages = _StorageSizes()
    sizes = list[LayerSizes]()
    x = inputs
    for layer, part in enumerate(parts):
        kept_storages: dict[int, int] = {}
        state_storages = storages.sizes([*part.parameters(), *part.buffers()])
        input_tree = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to("meta"), x)
        input_storages = storages.sizes(tensors_of(x))
        with FlopCounterMode(display=False) as counter, storages.recording(kept_storages), with_copied_buffers(part):
            x = part(x)
            if layer == len(parts) - 1:
                loss(x)
        kept_storages = {name: nbytes for name, nbytes in kept_storages.items() if name not in state_storages}
        operations = float(counter.get_total_flops())
        sizes.append(LayerSizes(operations, input_tree, input_storages, storages.sizes(tensors_of(x)), kept_storages))
    return sizes


def sizes_in_autocast(
    parts: Sequence[nn.Module], inputs: Tree, targets: Tree, loss: Callable[[Tree, Tree], Any], dtype: torch.dtype
) -> list[LayerSizes]:
    """As `measure_sizes`, under autocast as the CPU has it; the loss is computed without it.

    Args:
        parts, inputs, targets: all on the meta device, or all on the CPU.
    Cost: on the meta device a second of CPU for what torch imports.
    """

    def loss_without_autocast(output: Tree) -> Any:
        with torch.autocast("cpu", enabled=False):
            return loss(output, targets)

    with torch.autocast("cpu", dtype):
        if all(tensor.device.type == "cpu" for tensor in tensors_of(inputs)):
            return measure_sizes(parts, inputs, loss_without_autocast)
        from torch._subclasses.fake_tensor import FakeTensorMode

        def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(tensor, device="cpu")

        with FakeTensorMode(allow_non_fake_inputs=True):
            parts = [part._apply(on_cpu) for part in parts]
            inputs, targets = (tree_map_only(torch.Tensor, on_cpu, tree) for tree in (inputs, targets))
            sizes = measure_sizes(parts, inputs, loss_without_autocast)
    return [replace(size, input_tree=tree_map_only(torch.Tensor, _on_meta, size.input_tree)) for size in sizes]


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def optimizer_bytes(part: nn.Module, build: Callable[[dict[str, nn.Parameter]], Optimizer]) -> dict[str, int]:
    """Bytes that an optimizer keeps for each trained parameter after its first update, by name. It changes these."""
    parameters = {name: parameter for name, parameter in part.named_parameters() if parameter.requires_grad}
    if not parameters:
        return {}
    optimizer = build(parameters)
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    states = {name: optimizer.state.get(parameter, {}).values() for name, parameter in parameters.items()}
    return {name: sum(v.nbytes for v in state if isinstance(v, torch.Tensor)) for name, state in states.items()}


class _StorageSizes:
    """The bytes of storages, by their numbers. It keeps every tensor, so that no other one gets its storage."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []

    def sizes(self, tensors: Sequence[torch.Tensor]) -> dict[int, int]:
        self._tensors += tensors
        storages = [tensor.untyped_storage() for tensor in tensors]
        return {storage._cdata: storage.nbytes() for storage in storages}

    @contextmanager
    def recording(self, sizes: dict[int, int]) -> Iterator[None]:
        """Add the storage of each tensor that the `with` block keeps for a backward."""

        def note(tensor: torch.Tensor) -> torch.Tensor:
            sizes.update(self.sizes([tensor]))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            yield
