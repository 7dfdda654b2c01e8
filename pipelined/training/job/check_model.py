"""Checks of a user's model: done once, when it is built, before anything is computed.

A survey builds every stage on the meta device, without memory. So all ranks refuse a model with the same message, and
know the names and shapes of the stages that other ranks hold.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from pipelined.errors import UsageError
from pipelined.programs.updates.bucket_names import Stages
from pipelined.training.job.model import Model

METHODS = ("costs", "build", "loss", "identity")
Shapes = Mapping[str, tuple[int, ...]]


class ModelError(UsageError):
    """A model that would not train correctly; the message gives the fault and the remedy."""


def require_kind(dtype: torch.dtype, model_dtype: torch.dtype, model: str) -> None:
    """Raises ModelError: one dtype is floating-point, complex, bool or integer, and the other, of `model`, is not."""
    kinds = {(each.is_floating_point, each.is_complex, each is torch.bool) for each in (dtype, model_dtype)}
    if len(kinds) > 1:
        raise ModelError(f"inputs of {dtype} for a model {model} {model_dtype}; convert them, or give such an example")


@dataclass(frozen=True)
class Survey:
    """The tensors of one stage, by global name.

    Args:
        trained: parameters that an optimizer updates.
        frozen: parameters that do not require a gradient.
        buffers: persistent buffers, such as the running statistics of a batch norm.
    """

    trained: Shapes
    frozen: Shapes
    buffers: Shapes

    @property
    def everything(self) -> Shapes:
        return {**self.trained, **self.frozen, **self.buffers}


def check_methods(model: Model) -> None:
    """Refuse an object that is not a `Model`, such as a bare `nn.Sequential`.

    Raises:
        ModelError: names the first method that is missing.
    """
    for method in METHODS:
        if not callable(getattr(model, method, None)):
            fact = f"a {type(model).__name__} has no method {method}"
            raise ModelError(f"{fact}; write what pipelined.training.job.model.Model lists")


def survey(model: Model, cut: Sequence[range], dtype: torch.dtype) -> list[Survey]:
    """Build every stage on the meta device and check it.

    Args:
        cut: the layers of each stage.
    Raises:
        ModelError: a stage cannot be called with its input alone; a parameter is not of the dtype; a name is in several
            stages and the model does not tie it; there is no parameter to train.
    """
    stages = [_survey_stage(model, index, layers, dtype) for index, layers in enumerate(cut)]
    _check_shared(stages, frozenset(getattr(model, "tied", ())))
    if not any(stage.trained for stage in stages):
        frozen = sum(len(stage.frozen) for stage in stages)
        raise ModelError(f"the model has nothing to train (frozen parameters: {frozen}); let some require a gradient")
    return stages


def persistent_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that a state dict of the module would hold, by name."""
    buffers = dict(module.named_buffers())
    kept = module.state_dict(keep_vars=True) if buffers else {}  # most models have none, and it takes a while
    return {name: buffer for name, buffer in buffers.items() if name in kept}


def holders_of_names(stages: Sequence[Survey], shapes_of: Callable[[Survey], Shapes]) -> dict[str, Stages]:
    """The stages that hold each name; names are in the model's order."""
    holders: dict[str, Stages] = {}
    for index, stage in enumerate(stages):
        for name in shapes_of(stage):
            holders[name] = (*holders.get(name, ()), index)
    return holders


def check_built(index: int, module: nn.Module, expected: Survey) -> None:
    """Refuse a stage with other tensors, or other frozen tensors, than its survey, on which the other ranks rely.

    Raises:
        ModelError: names the first tensor that differs.
    """
    remedy = "let `build` make the same module whatever the device and the seed"
    built = _survey_module(module)
    for name in sorted({*built.everything, *expected.everything}):
        built_shape, surveyed_shape = built.everything.get(name), expected.everything.get(name)
        if built_shape != surveyed_shape:
            fact = f"stage {index} was built with {name} of shape {built_shape}"
            raise ModelError(f"{fact}, on the meta device of shape {surveyed_shape}; {remedy}")
        if (name in built.trained) != (name in expected.trained):
            devices = "here", "on the meta device"
            trained, frozen = devices if name in built.trained else devices[::-1]
            raise ModelError(f"{name} of stage {index} is trained {trained} and frozen {frozen}; {remedy}")


def _survey_stage(model: Model, index: int, layers: range, dtype: torch.dtype) -> Survey:
    module = model.build(layers, dtype, "meta", None)
    if not isinstance(module, nn.Module):
        raise ModelError(f"stage {index} was built as a {type(module).__name__}; let `build` return an nn.Module")
    try:
        inspect.signature(module.forward).bind("x")
    except TypeError as error:
        fact = f"stage {index}, a {type(module).__name__}, cannot be called with its input alone ({error})"
        raise ModelError(f"{fact}; let its forward take one argument") from error
    for name, parameter in module.named_parameters():
        if parameter.dtype != dtype and parameter.requires_grad:
            fact = f"{name} of stage {index} is {parameter.dtype}, and all that is trained should be {dtype}"
            raise ModelError(f"{fact}; convert the module in `build`, with .to(dtype)")
    return _survey_module(module)


def _survey_module(module: nn.Module) -> Survey:
    trained, frozen = dict[str, tuple[int, ...]](), dict[str, tuple[int, ...]]()
    for name, parameter in module.named_parameters():
        (trained if parameter.requires_grad else frozen)[name] = tuple(parameter.shape)
    return Survey(trained, frozen, {name: tuple(b.shape) for name, b in persistent_buffers(module).items()})


def _check_shared(stages: Sequence[Survey], tied: frozenset[str]) -> None:
    """Check that a name in several stages is tied by the model, has one shape, and is trained in all or in none."""
    for name, numbers in holders_of_names(stages, lambda stage: stage.everything).items():
        shapes = [stages[stage].everything[name] for stage in numbers]
        where = f"{name} is in stages {', '.join(map(str, numbers))} (shapes: {', '.join(map(str, shapes))})"
        if len(numbers) > 1 and name not in tied:
            remedy = "give each stage names of its own, such as the layer's number in the model"
            raise ModelError(f"{where}, and the model does not tie it; {remedy}, or list it in the model's `tied`")
        if len(set(shapes)) > 1:
            raise ModelError(f"{where}, so it cannot be one tensor; give the stages names of their own")
        if len({name in stages[stage].trained for stage in numbers}) > 1:
            raise ModelError(f"{where}, trained in some and frozen in others; do the same in all of them")
