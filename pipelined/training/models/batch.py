"""Batches: pairs (inputs, targets), each a tensor, or tuples, lists and dicts of tensors with as many rows each."""

from collections.abc import Iterable

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from pipelined.errors import UsageError
from pipelined.training.exchange.parcels import Tree

Batch = tuple[Tree, Tree]
"""(inputs, targets)."""


class BatchError(UsageError):
    """Batches that do not fit the job; the message gives both numbers."""


def slice_rows(tree: Tree, start: int, rows: int) -> Tree:
    """Some rows of every tensor of a tree."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor[start : start + rows], tree)


def convert_floats(tree: Tree, dtype: torch.dtype) -> Tree:
    """The same tree with its floating-point tensors in this dtype."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, tree)


def require_batches(batches: object, otherwise: str = "") -> None:
    """Raises BatchError: these cannot be iterated."""
    if not isinstance(batches, Iterable) and not hasattr(batches, "__getitem__"):
        fact = f"`batches` is a {type(batches).__name__}, which has no batches"
        raise BatchError(f"{fact}; give an iterable of (inputs, targets){otherwise}")


def rows_of_batch(batch: object, name: str) -> int:
    """The rows of a batch.

    Raises:
        BatchError: it is not a pair, holds something without rows, or its tensors differ in rows.
    """
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        fact = f"{name} is not a pair (inputs, targets) of tensors, but {_describe_batch(batch)}"
        raise BatchError(f"{fact}; give two, with as many rows each")
    inputs, targets = rows_of(batch[0], f"inputs of {name}"), rows_of(batch[1], f"targets of {name}")
    if inputs != targets:
        fact = f"{name} has {inputs} rows of inputs and {targets} of targets"
        raise BatchError(f"{fact}; give inputs and targets the same number of rows")
    return inputs


def rows_of(tree: Tree, name: str) -> int:
    """The rows that every tensor of a tree has."""
    leaves = tree_leaves(tree)
    if not all(isinstance(leaf, torch.Tensor) and leaf.dim() and len(leaf) for leaf in leaves or [None]):
        raise BatchError(f"{name}: {_describe_batch(tree)} is not made of tensors with rows; give such tensors")
    rows = {len(leaf) for leaf in leaves}
    if len(rows) > 1:
        raise BatchError(f"{name} has tensors with {' and '.join(map(str, sorted(rows)))} rows; give all as many")
    return rows.pop()


def _describe_batch(batch: object) -> str:
    if isinstance(batch, tuple | list):
        return f"a {type(batch).__name__} of {', '.join(type(part).__name__ for part in batch) or 'nothing'}"
    return f"a {type(batch).__name__}"
