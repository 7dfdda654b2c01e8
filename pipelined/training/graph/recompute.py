"""Parts of a forward that keep only their inputs, and run again in the backward.

    forward     q, k, v ── core ── y       autograd keeps a ticket for each tensor that the core's backward needs
    backward    the first ticket that it opens runs the core again, on q, k and v, and fills all tickets

The graph stays that of the forward, so the gradients have the bits of a run that keeps everything, in a whole backward
and in one in halves; the second half finds the tickets filled. A part draws the same random numbers again.

Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022), section 4.2. The
tickets are those of `torch.utils.checkpoint`, which runs a part again for every half and knows no keyed random numbers.
"""

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

from pipelined.random.keyed_random import Within
from pipelined.random.torch_random import drawing_again
from pipelined.training.graph.read_buffers import ReadBuffers

READ_BUFFERS = weakref.WeakKeyDictionary[nn.Module, "ReadBuffers[_Run]"]()
"""Of each module that runs again: the buffers that its runs read, as long as a graph holds these."""
_SELECTS_ATTENTION: ContextVar[bool] = ContextVar("whether the cores of attentions run again", default=False)


def selecting_attention(selected: bool) -> AbstractContextManager[None]:
    """Let the cores of attentions in the block be recomputed, or not."""
    return Within(_SELECTS_ATTENTION, selected)


def attention_core(core: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    """Run the core of an attention (scores, softmax, dropout, values), recomputed where the run selects that."""
    selected = not torch.compiler.is_compiling() and _SELECTS_ATTENTION.get()
    return run_recomputed(core, *inputs) if selected else core(*inputs)


def run_recomputed(part: Callable[..., Any], *inputs: Any) -> Any:
    """Run a part of a forward, of which the backward keeps only the inputs. Without a graph, or compiled, it just runs.

    Args:
        part: a function without parameters of its own, or a module. The first run alone writes buffers,
            and both read the same.
        inputs: tensors, alone or in tuples, lists and dicts, beside any other values.
    Cost: the part's forward once more, up to the last tensor that its backward needs.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return part(*inputs)
    run = _Run(part, inputs)
    pack: Any = weakref.WeakMethod(run.pack)  # torch keeps the hook as long as the graph
    with saved_tensors_hooks(lambda tensor: pack()(tensor), Ticket.open):
        if not isinstance(part, nn.Module):
            return part(*inputs)
        return _read_buffers(part).run_noting(run, part, partial(part, *inputs))


class Ticket:
    """Stands for one tensor that autograd saved.

    Attributes:
        run: the run of the part; None: no backward opens this ticket any more.
        tensor: the tensor, once the part has run again.
    """

    def __init__(self, run: "_Run", shape: torch.Size):
        self.run: _Run | None = run
        self.tensor: torch.Tensor | None = None
        self._shape = shape

    def open(self) -> torch.Tensor:
        """The tensor, for a backward.

        Raises:
            RuntimeError: the part computed something else the second time.
        """
        if self.tensor is None and self.run is not None:
            self.run.rerun()
        if self.tensor is None or self.tensor.shape != self._shape:
            fact = f"a recomputed part saved another tensor the second time (first: {tuple(self._shape)})"
            raise RuntimeError(f"{fact}; let it depend on its inputs, parameters and random numbers alone")
        return self.tensor


class _Filled(Exception):
    """All tickets have their tensors, so the rest of the part need not run."""


class _Inputs(torch.autograd.Function):
    """Saves tensors as autograd does, so that hooks on what is saved see them; no backward passes through it."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)


class _Run:
    """One run of a part, and what it needs to run again where it ran."""

    def __init__(self, part: Callable[..., Any], inputs: tuple[Any, ...]):
        leaves, self._form = tree_flatten(inputs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        anchor = torch.empty(0, requires_grad=True)
        self.inputs: Any = _Inputs.apply(anchor, *(tensor.detach() for tensor in tensors)).grad_fn
        self._leaves = [leaf.requires_grad if isinstance(leaf, torch.Tensor) else [leaf] for leaf in leaves]
        self._part = part
        self._tickets = list[weakref.ref[Ticket]]()
        self._parameters = dict(part.named_parameters()) if isinstance(part, nn.Module) else {}
        self._versions = self._parameter_versions()
        self._context = copy_context()
        self._draws = drawing_again()
        device = next((tensor.device.type for tensor in tensors if tensor.device.type != "meta"), "cpu")
        cast = torch.is_autocast_enabled(device)
        self._autocast = torch.autocast(device, torch.get_autocast_dtype(device), enabled=cast)

    def pack(self, tensor: torch.Tensor) -> Ticket:
        """A ticket for a tensor that autograd saves."""
        ticket = Ticket(self, tensor.shape)
        self._tickets.append(weakref.ref(ticket))
        return ticket

    def rerun(self) -> None:
        """Run the part again, and fill the tickets that are still held."""
        waiting = iter(self._tickets)
        count = len(self._tickets)

        def fill(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal count
            if (ticket := next(waiting)()) is not None:
                ticket.tensor = tensor.detach()
            count -= 1
            if not count:
                raise _Filled
            return tensor.detach()

        with torch.enable_grad(), self._autocast, self._draws(), saved_tensors_hooks(fill, lambda tensor: tensor):
            with suppress(_Filled):
                self._context.run(self._repeat)

    def _parameter_versions(self) -> list[int]:
        return [parameter._version for parameter in self._parameters.values()]

    def _repeat(self) -> None:
        if self._parameter_versions() != self._versions:
            fact = "a weight of a recomputed layer was changed between its forward and its backward"
            raise RuntimeError(f"{fact}; leave its mark out, or change weights between steps alone")
        saved = iter(self.inputs.saved_tensors)
        leaves = [next(saved).detach().requires_grad_(x) if isinstance(x, bool) else x[0] for x in self._leaves]
        inputs = tree_unflatten(leaves, self._form)
        if not isinstance(self._part, nn.Module):
            self._part(*inputs)
            return
        with _read_buffers(self._part).reading(self, self._part):
            torch.func.functional_call(self._part, self._parameters, inputs)


def _read_buffers(part: nn.Module) -> "ReadBuffers[_Run]":
    return READ_BUFFERS.setdefault(part, ReadBuffers[_Run](weakref.WeakKeyDictionary()))
