"""Any module that `torch.export` can trace, cut into stages at its modules.

The module's code runs once, without values; what it computes becomes a graph. A part of the graph is a stage. Its
parameters and buffers keep the names of the module, so the state loads there.

Source: `torch.distributed.pipelining.pipeline` cuts an exported graph, too.
"""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from pipelined.random.keyed_random import place_of_layer
from pipelined.random.torch_random import run_layer
from pipelined.training.job.check_model import ModelError
from pipelined.training.job.module_tensors import copy_hooks, copy_module, register_tensor
from pipelined.training.models.cut_graph import Boundary, PartGraph
from pipelined.training.models.handed_on import HandedOn
from pipelined.training.models.sequential import Loss
from pipelined.training.models.traced_program import TracedProgram, first_names
from pipelined.training.stages.stage import evaluating

CPU = torch.device("cpu")


def trace(module: nn.Module, example: Any) -> "Traced":
    """Trace a module, so that it can be cut into stages at its modules.

    It trains in the mode in which it is given, with the values that it has. The number of rows stays open if the
    module's code allows that; all other sizes are those of the example.

    Args:
        module: the whole module, on the CPU.
        example: inputs as one microbatch has them: a tensor, a tuple of arguments, or a dict of keyword arguments.
    Raises:
        ModelError: the module cannot be traced; the message has the line of its code.
    Cost: one run of the module without values; further ones for evaluation and for another dtype when they are needed.
    """
    return Traced(module, example)


class Traced:
    """A module that is cut at its modules, as `pipelined.train` takes it; see `trace`.

    Attributes:
        names: the name of every parameter and buffer, and the first name of the same tensor.
        cuts: the modules before which the module may be cut.
    """

    def __init__(self, module: nn.Module, example: Any):
        if not isinstance(module, nn.Module):
            raise ModelError(f"a {type(module).__name__} cannot be traced; give pp.trace an nn.Module")
        self.module = module
        self.names = first_names(module)
        self._example = example
        self._lock = threading.Lock()
        self._programs: dict[tuple[torch.dtype, bool], TracedProgram] = {}
        floating = (p.dtype for p in module.parameters() if p.is_floating_point())
        self._dtype = next(floating, torch.get_default_dtype())
        self.cuts = [boundary.name for boundary in self.program().evenly_cut()]

    def bind(self, loss: Loss, example: Any = None) -> "TracedModel":
        """The model with its loss, as a trainer takes it.

        Args:
            example: the inputs of one microbatch.
        Raises:
            ModelError: the inputs have other sizes than those that were traced.
        """
        model = TracedModel(self, loss)
        if example is not None:
            model.check_inputs(example)
        return model

    def program(self, dtype: torch.dtype | None = None, training: bool = True) -> TracedProgram:
        """The graph of the module in one dtype (None: its own), traced when it is first needed."""
        key = dtype or self._dtype, training
        with self._lock:
            if key not in self._programs:
                self._programs[key] = self._traced(*key)
            return self._programs[key]

    def _traced(self, dtype: torch.dtype, training: bool) -> TracedProgram:
        module = self.module if dtype == self._dtype else copy_module(self.module).to(dtype)
        example = pytree.tree_map_only(torch.Tensor, partial(_convert, dtype=dtype), self._example)
        if training:
            return TracedProgram(module, example)
        with evaluating(module):
            return TracedProgram(module, example)


class TracedModel:
    """A traced module with its loss, in the form that the trainer takes (`pipelined.training.job.model.Model`)."""

    def __init__(self, traced: Traced, loss: Loss):
        self._traced, self._loss = traced, loss

    @property
    def layers(self) -> int:
        """The pieces between the places where the module may be cut."""
        return len(self._traced.cuts) + 1

    @property
    def tied(self) -> frozenset[str]:
        """Every name: a name in two pieces is one tensor of the module."""
        return frozenset(self._traced.names.values()) | self._traced.program().constants

    def costs(self, sequence: int) -> list[float]:
        """The operations for one row, plus the parameters, of each piece."""
        return self._traced.program().costs(self._traced.cuts)

    def handed_on(self, layers: range, dtype: torch.dtype) -> HandedOn:
        """What these pieces hand on unread in training."""
        program = self._traced.program(dtype)
        start, stop = ends(self._traced, program, layers)
        if start is None or stop is None or len(start.live) == 1:
            return {}
        part = PartGraph(program.graph, start, stop, device=CPU, draws=lambda draw, name: draw, nested="_training")
        return part.handed_on()

    def build(self, layers: range, dtype: torch.dtype, device: torch.device | str, seed: int | None) -> nn.Module:
        """These pieces as one module, with copies of the values that the traced module has."""
        return TracedPart(self._traced, layers, dtype, torch.device(device))

    def state_dict(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The state as the module names it; what its forward does not use keeps its value."""
        state = self._traced.module.state_dict()
        return {name: tensors.get(self._traced.names.get(name, name), value) for name, value in state.items()}

    def check_inputs(self, inputs: Any) -> None:
        """Refuse inputs of other sizes than those that were traced; raises ModelError."""
        self._traced.program().leaves(inputs)

    def release(self) -> None:
        """Nothing is freed: the module is the caller's."""

    def loss(self, output: Any, targets: torch.Tensor) -> torch.Tensor:
        return self._loss(output, targets)

    def identity(self) -> Mapping[str, Any]:
        module = self._traced.module
        return {"traced": type(module).__name__, "state": {n: list(t.shape) for n, t in module.state_dict().items()}}


class TracedPart(nn.Module):
    """Some consecutive pieces of a traced module.

    Each operation that draws random numbers does so under a key of its own, (seed, step, microbatch, "layer NAME");
    NAME is the module in which it lies. The same dropout masks are drawn wherever the module is cut.

    Args:
        layers: the numbers of the pieces.
    """

    def __init__(self, traced: Traced, layers: range, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self._traced = traced
        self._layers = layers
        self._dtype = dtype
        self._device = device
        self._codes: dict[bool, Callable[..., Any]] = {}
        program = traced.program(dtype)
        persistent_names = traced.module.state_dict()
        for name in program.graph.states_in(*ends(traced, program, layers)):
            source = program.tensor(name)
            tensor = self._copy(program, name)
            is_parameter = isinstance(source, nn.Parameter)
            copied = nn.Parameter(tensor, source.requires_grad) if is_parameter else tensor
            if is_parameter and not tensor.is_meta:
                copy_hooks(source, copied)
            register_tensor(self, name, copied, persistent=name in persistent_names)

    def forward(self, x: Any) -> Any:
        """The tensors that cross the part's end: one, or a tuple. The last part returns what the module returns."""
        program = self._traced.program(self._dtype, self.training)
        start, stop = ends(self._traced, program, self._layers)
        values = program.leaves(x) if start is None else [x] if len(start.live) == 1 else list(x)
        if self.training not in self._codes:
            self._codes[self.training] = self._compile_part(program, start, stop)
        results = self._codes[self.training](self, *values)
        if stop is None:
            return pytree.tree_unflatten(results, program.outputs)
        return results[0] if len(results) == 1 else tuple(results)

    def _copy(self, program: TracedProgram, name: str) -> torch.Tensor:
        """A copy of a tensor of the module, in this part's dtype and on its device."""
        source = program.tensor(name).detach()
        tensor = source if name in program.constants else _convert(source, self._dtype)
        is_meta = self._device.type == "meta"
        return torch.empty_like(tensor, device="meta") if is_meta else tensor.to(self._device, copy=True)

    def _compile_part(
        self, program: TracedProgram, start: Boundary | None, stop: Boundary | None
    ) -> Callable[..., list[Any]]:
        """The code of this part: a function of the part and of the values that arrive."""
        registered = {name for name, _ in (*self.named_parameters(), *self.named_buffers())}
        for name in program.graph.states_in(start, stop):
            if name not in registered:  # training does not use it, so it keeps its value
                register_tensor(self, name, self._copy(program, name), persistent=False)
        nested = "_training" if self.training else "_evaluation"
        part = PartGraph(program.graph, start, stop, device=self._device, draws=self._key_draw, nested=nested)
        self.__dict__.update(part.nested)  # not registered: they have no tensors of their own
        code = part.graph.python_code("self")
        names: dict[str, Any] = dict(code.globals)
        exec(compile(code.src, f"<{type(self._traced.module).__name__}>", "exec"), names)
        return names["forward"]

    def _key_draw(self, draw: Callable[..., Any], name: str) -> Callable[..., Any]:
        """An operation that draws random numbers, keyed by the name of the draw in training."""

        def keyed(*args: Any, **kwargs: Any) -> Any:
            return run_layer(partial(draw, *args, **kwargs), place_of_layer(name))

        return keyed


def ends(traced: Traced, program: TracedProgram, layers: range) -> tuple[Boundary | None, Boundary | None]:
    """Where some pieces of a traced module begin and end; None: where the module does."""
    first = program.boundary(traced.cuts[layers.start - 1]) if layers.start else None
    return first, program.boundary(traced.cuts[layers.stop - 1]) if layers.stop <= len(traced.cuts) else None


def _convert(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
