"""The tensors of a module: put in the place of others, registered under dotted names, or copied for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


def replace_tensor(module: nn.Module, old: torch.Tensor, new: torch.Tensor) -> None:
    """Put a parameter or buffer in every place of a module where another one is."""
    for inner in module.modules():
        tensors = {**inner._parameters, **inner._buffers}
        for name in [name for name, tensor in tensors.items() if tensor is old]:
            setattr(inner, name, new)


def register_tensor(module: nn.Module, name: str, tensor: torch.Tensor, persistent: bool = True) -> None:
    """Register a parameter or a buffer under a dotted name, in modules that are made where none are.

    Args:
        persistent: whether a state dict has it; for a buffer.
    """
    *path, leaf = name.split(".")
    for step in path:
        if step not in module._modules:
            module.add_module(step, nn.Module())
        module = module.get_submodule(step)
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(leaf, tensor)
    else:
        module.register_buffer(leaf, tensor, persistent)


@contextmanager
def with_copied_buffers(module: nn.Module) -> Iterator[None]:
    """Inside the `with` block writes to buffers go to copies, which are discarded at its end."""
    owners = [(part, leaf, buffer) for part in module.modules() for leaf, buffer in part.named_buffers(recurse=False)]
    try:
        for part, leaf, buffer in owners:
            setattr(part, leaf, buffer.clone())
        yield
    finally:
        for part, leaf, buffer in owners:
            setattr(part, leaf, buffer)
