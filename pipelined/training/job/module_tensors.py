"""The tensors of a module: put in the place of others, registered under dotted names, or copied for a while."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


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


def copy_module(module: M) -> M:
    """A deep copy of a module, with the hooks of its parameters, which `copy.deepcopy` leaves out.

    Where a hook refers to the module, or to a part or a tensor of it, the copy's hook refers to the copy of that.
    """
    copies: dict[int, Any] = {}
    copied = copy.deepcopy(module, copies)
    copied_parameters = dict(copied.named_parameters())
    for name, parameter in module.named_parameters():
        copy_hooks(parameter, copied_parameters[name], copies)
    return copied


def has_hooks(parameter: torch.Tensor) -> bool:
    """Whether a backward calls hooks of the parameter; torch registers none where it needs no gradient."""
    return parameter.requires_grad and bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def copy_hooks(parameter: torch.Tensor, copied: torch.Tensor, copies: Mapping[int, Any] | None = None) -> None:
    """Register the hooks of a parameter for a copy of it, too.

    Args:
        copies: by the original's id, the copies to which these hooks refer in place of originals; None: to none.
    """
    if has_hooks(parameter):
        for hook in (parameter._backward_hooks or {}).values():
            copied.register_hook(_referring_to(copies, hook) if copies else hook)
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            copied.register_post_accumulate_grad_hook(_referring_to(copies, hook) if copies else hook)


def _referring_to(copies: Mapping[int, Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that refers to copies where it refers to modules and tensors that were copied.

    Args:
        copies: by the original's id.
    """
    find = partial(_find_copy, copies)
    match hook:
        case MethodType():
            return MethodType(hook.__func__, find(hook.__self__))
        case partial():
            keywords = {name: find(value) for name, value in hook.keywords.items()}
            return partial(_referring_to(copies, hook.func), *map(find, hook.args), **keywords)
        case FunctionType():
            defaults = tuple(map(find, hook.__defaults__ or ()))
            closure = tuple(_cell_of_copy(copies, cell) for cell in hook.__closure__ or ())
            function = FunctionType(hook.__code__, hook.__globals__, hook.__name__, defaults, closure)
            function.__kwdefaults__ = hook.__kwdefaults__
            return function
    return hook


def _cell_of_copy(copies: Mapping[int, Any], cell: CellType) -> CellType:
    """The cell itself where its value was not copied: functions that assign the variable share it."""
    try:
        copied = _find_copy(copies, cell.cell_contents)
        return cell if copied is cell.cell_contents else CellType(copied)
    except ValueError:  # the variable has no value yet
        return cell


def _find_copy(copies: Mapping[int, Any], value: Any) -> Any:
    return copies.get(id(value), value) if isinstance(value, nn.Module | torch.Tensor) else value
