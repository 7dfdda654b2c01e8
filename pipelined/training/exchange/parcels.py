"""The content of a message between two stages: one tensor, or several in tuples, lists and dicts, all in one message.

One tensor is a message of one block without a note. Several are the blocks of one message; its note describes how they
nest, each part by one of these:

    True, False             the next tensor; True: its gradient is sent back
    ["tuple", part, ...]    also ["list", part, ...]
    ["dict", [key, part], ...]
    ["value", value]        None, a bool, a number or a string, which travels as it is
    ["elsewhere"]           a tensor that is not in this message; see `pipelined.training.exchange.skips`

The gradients of one tensor are a message of one block. Those of several are a message whose note has the position of
each block's tensor, from 0; tensors without a position have no gradient. A tensor that is elsewhere has one, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from pipelined.errors import UsageError
from transports import Block, Message, WireError

Tree = Any
"""A tensor, or tuples, lists and dicts of tensors and plain values."""
PLAIN = (bool, int, float, str, type(None))
ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Parcel:
    """Tensors on their way to another stage.

    Args:
        tensors: on the host; the blocks of the message.
        note: describes them; None for one tensor.
    """

    tensors: tuple[Any, ...]
    note: Any = None


class Elsewhere:
    """In place of a tensor that a stage hands on unread: the tensor itself does not come to this stage.

    Raises:
        UsageError: from every use but to hand it on.
    """

    @classmethod
    def __torch_function__(cls, *_: Any) -> Any:
        fact = "a layer reads a tensor here that it handed on unread for the example"
        raise UsageError(f"{fact}; let it read the tensor for the inputs of every microbatch, or of none")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__torch_function__()

    __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = __pow__ = __neg__ = __getitem__ = __len__ = (
        __torch_function__
    )


Arrived = Tree | Message
"""An input: a message from another stage, or tensors of this rank."""


def tensors_of(tree: Tree) -> list[torch.Tensor]:
    """The tensors of a tree, in order; most trees are one tensor, which needs no walk."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def positions_of(tree: Tree) -> list[torch.Tensor | Elsewhere]:
    """The tensors of a tree in order, with those that are elsewhere."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor | Elsewhere)]


def pack_tree(tree: Tree, recompute: bool = False) -> Parcel:
    """The tensors of a tree as they are sent to the next stage: detached, on the host.

    Args:
        recompute: whether the tensors have no graph yet, so that each floating-point one may need a gradient.
    Raises:
        UsageError: the tree holds something else than tensors and plain values, or no tensor.
    """
    note = None if isinstance(tree, torch.Tensor) else describe_tree(tree, recompute)
    return Parcel(tuple(tensor.detach().cpu() for tensor in tensors_of(tree)), note)


def open_tree(arrived: Arrived, device: torch.device, gradients: bool = False) -> Tree:
    """The input of a stage, on its device.

    Args:
        gradients: whether the gradients of the input are needed; then its tensors that have one are leaves.
    Raises:
        WireError: the note and the blocks do not match.
    """
    if isinstance(arrived, torch.Tensor):
        return _leaf(arrived.to(device), gradients)
    if not isinstance(arrived, Message):
        return tree_map_only(torch.Tensor, lambda x: _leaf(x.to(device), gradients), arrived)
    blocks = iter(arrived.blocks)
    note = True if arrived.note is None else arrived.note
    tree = _restore_tree(note, blocks, device, gradients)
    if next(blocks, None) is not None:
        raise WireError(f"more tensors than the note describes (tensors: {len(arrived.blocks)}, note: {note})")
    return tree


def pack_gradients(tree: Tree, gradients: Sequence[torch.Tensor | None]) -> Parcel:
    """The gradients of the input of a stage as they are sent to the stage before it.

    Args:
        tree: the input.
        gradients: of those of its tensors that require one; None: nothing depends on the tensor. Zeros are sent for
            one tensor, and nothing for one of several.
    """
    if isinstance(tree, torch.Tensor) and tree.requires_grad:
        (gradient,) = gradients
        return Parcel((torch.zeros_like(tree, device="cpu") if gradient is None else gradient.cpu(),))
    inputs = enumerate(positions_of(tree))
    positions = [position for position, tensor in inputs if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
    sent = [(position, g.cpu()) for position, g in zip(positions, gradients, strict=True) if g is not None]
    return Parcel(tuple(gradient for _, gradient in sent), [position for position, _ in sent])


def open_gradients(
    arrived: Arrived, outputs: Sequence[torch.Tensor | Elsewhere], device: torch.device
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each output that requires a gradient and has one, and the gradient.

    Args:
        outputs: as `positions_of` gives them.
    Raises:
        WireError: the gradients are not those of these outputs, or have another shape.
    """
    if isinstance(arrived, Message):
        positions = arrived.note
        gradients = [block.torch() for block in arrived.blocks]
        positions = [0] if positions is None else positions
    else:
        gradients = tensors_of(arrived)
        positions = list(range(len(gradients)))
    present = {position for position, output in enumerate(outputs) if isinstance(output, torch.Tensor)}
    fits = isinstance(positions, list) and len(positions) == len(gradients)
    if not fits or not all(isinstance(position, int) and position in present for position in positions):
        counts = f"outputs: {len(outputs)}, gradients: {len(gradients)}"
        raise WireError(f"gradients of other tensors ({counts}, positions: {positions})")
    due_outputs = [output for position in positions if isinstance(output := outputs[position], torch.Tensor)]
    pairs = list(zip(due_outputs, gradients, strict=True))
    for output, gradient in pairs:
        if output.shape != gradient.shape:
            fact = f"output: {tuple(output.shape)}, gradient: {tuple(gradient.shape)}"
            raise WireError(f"a gradient of another shape than its output ({fact})")
    return [(output, gradient.to(device)) for output, gradient in pairs if output.requires_grad]


def describe_tree(tree: Tree, recompute: bool = False) -> Any:
    """The note of a tree, as for `pack_tree`."""
    if not positions_of(tree):
        raise UsageError(f"a {type(tree).__name__} without a tensor; let it give at least one tensor")
    return _describe_tree(tree, recompute)


def differentiable(tensor: torch.Tensor) -> bool:
    """Whether tensors of this dtype can have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def random_values(tree: Tree, dtype: torch.dtype) -> Tree:
    """Random values of the shapes of these tensors: of this dtype where they have a gradient, zeros of others."""

    def draw(tensor: torch.Tensor) -> torch.Tensor:
        if differentiable(tensor):
            return torch.randn(tensor.shape, dtype=dtype)
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    return tree_map_only(torch.Tensor, draw, tree)


def _describe_tree(tree: Tree, recompute: bool) -> Any:
    if isinstance(tree, torch.Tensor):
        return differentiable(tree) if recompute else tree.requires_grad
    if type(tree) in PLAIN:
        return ["value", tree]
    if isinstance(tree, Elsewhere):
        return [ELSEWHERE]
    if type(tree) in (tuple, list):
        return [type(tree).__name__, *(_describe_tree(part, recompute) for part in tree)]
    if type(tree) is dict and all(type(key) in PLAIN for key in tree):
        return ["dict", *([key, _describe_tree(part, recompute)] for key, part in tree.items())]
    fact = f"a {type(tree).__name__}, which cannot be sent to another stage"
    raise UsageError(f"{fact}; let it give tensors, alone or in tuples, lists and dicts")


def _restore_tree(note: Any, blocks: Iterator[Block], device: torch.device, gradients: bool) -> Tree:
    match note:
        case bool():
            block = next(blocks, None)
            if block is None:
                raise WireError("fewer tensors than the note describes; install one release on every rank")
            return _leaf(block.torch().to(device), gradients and note)
        case ["value", value]:
            return value
        case [str(kind)] if kind == ELSEWHERE:
            return Elsewhere()
        case ["tuple", *parts]:
            return tuple([_restore_tree(part, blocks, device, gradients) for part in parts])
        case ["list", *parts]:
            return [_restore_tree(part, blocks, device, gradients) for part in parts]
        case ["dict", *pairs]:
            return {key: _restore_tree(part, blocks, device, gradients) for key, part in pairs}
    raise WireError(f"a note that describes no tensors ({note!r:.80}); install one release on every rank")


def _leaf(tensor: torch.Tensor, gradients: bool) -> torch.Tensor:
    return tensor.requires_grad_() if gradients and differentiable(tensor) else tensor
